"""The tree of draft tokens of a server: its branches and its depth, by which EAGLE drafts."""

from attnfuzz.reference.case import Case, Mask, Mode
from attnfuzz.reference.masks import mask_of


def topk_of(case: Case) -> int:
    """Return the number of branches of a draft token, --speculative-eagle-topk: 1 for a chain."""
    return 2 if case.mask is Mask.TREE else 1


def draft_depth(case: Case) -> int:
    """Return the number of steps in which a server drafts, --speculative-num-steps, from the case's deepest tree.

    A chain of n draft tokens, of which the first is known, takes n - 1 steps (0.5.9: server_args.py:2450).
    """
    drafts = max((step.drafts for step in case.steps), default=0)
    depths = [
        int(mask[:, request.kv_len - request.q_len :].sum(dim=1).max()) - 1
        for step in case.steps
        if step.mode is Mode.TARGET_VERIFY
        for request in step.requests
        if request.q_len and (mask := mask_of(case, step, request)) is not None
    ]
    return max(1, *depths) if depths else drafts - 1
