"""The workspace of native kernels below a release."""

from typing import Final

from attnfuzz.kernels.native.ops import workspace_bytes
from attnfuzz.reference.case import Case, Step

_LONGER_THAN_ANY: Final = 1 << 30
"""Keys that need the maximum number of splits."""


def native_workspace(case: Case, *, scheduled: bool = False) -> int:
    """Return the bytes that suffice for any batch that a release derives from a step's query rows, right or wrong.

    Partial results take the same space for each query row, however many rows form a request. With `scheduled`, the
    release itself chooses the requests of a forward.
    """
    geometry = case.geometry
    rows = [_scheduled_rows(case)] if scheduled else map(_decoded_rows, case.steps)
    return workspace_bytes(
        batch=1,
        q_len=max(1, *rows),
        q_heads=geometry.q_heads,
        kv_heads=1,
        head_dim_vo=geometry.head_dim_vo,
        max_seq_len=_LONGER_THAN_ANY,
    ).total


def _scheduled_rows(case: Case) -> int:
    """Bound the rows that any forward passes to the decode kernel.

    Any slot may verify drafts in any step, and so may a request that computes a slot's prefix. Padding comes on top.
    """
    tokens = max(1, *(step.drafts for step in case.steps))
    return (2 * len(case.slot_lengths()) + 1) * tokens + max(step.padded_tokens for step in case.steps)


def _decoded_rows(step: Step) -> int:
    """Bound the rows that a step passes to the decode kernel."""
    if step.mode.speculative:
        # SGLang's MLA pads a ragged step to its longest request, and padding is rounded up to a whole request.
        return step.padded_tokens + max(step.padded_batch, len(step.requests)) * step.tokens_per_request
    # In a prefill: the requests with one token (0.5.23 trtllm_mha_backend.py, forward_extend), and padding as such.
    return len(step.requests) + step.padded_tokens - step.tokens
