"""The keys that queries see under a case's mask, drawn from its seed.

The mask of a request depends on its slot and its lengths, neither on the other requests of its step nor on its place
among them: a batch that is permuted, extended or replayed keeps its masks.
"""

import torch

from attnfuzz.reference.case import Case, Mask, Mode, Request, Step
from attnfuzz.reference.chance import mixed

_STREAM = 1_000_033
"""Distinct from the streams of tokens and sinks: there are fewer slots and steps."""

_FEW = 2.0
"""Mean number of keys that a row with few keys sees, beside the one that it sees in any case."""

_ALL, _NONE = 2.0, -1.0
_SHARES = (0.0, 0.0, _ALL, 0.5, 0.9)
"""Shares of the keys that rows of a custom mask see, each as likely; 0 stands for few keys."""


def applies(case: Case, step: Step) -> bool:
    """Whether queries of `step` see other keys than under a causal mask: a tree is a mask of verify steps alone."""
    if case.mask is Mask.TREE:
        return step.mode is Mode.TARGET_VERIFY
    return case.mask is not Mask.CAUSAL


def mask_of(case: Case, step: Step, request: Request) -> torch.Tensor | None:
    """The mask bool [q_len, kv_len] of a request of `step`, set where a query sees a key; None if it is causal.

    The window of the geometry cuts off further keys. The tensor is on the host.
    """
    if not applies(case, step):
        return None
    shape = (request.q_len, request.kv_len)
    if case.mask is Mask.FULL:
        return torch.ones(shape, dtype=torch.bool)
    generator = torch.Generator()
    seed = mixed(mixed(case.seed, _STREAM), request.slot)
    generator.manual_seed(mixed(mixed(seed, request.q_len), request.kv_len))
    if case.mask is Mask.TREE:
        return _tree(*shape, generator)
    return _custom(*shape, generator, empty_rows=case.mask is Mask.EMPTY_ROWS)


def _tree(q_len: int, kv_len: int, generator: torch.Generator) -> torch.Tensor:
    """The prefix, and the ancestors of each draft token in a tree whose root is the first; the last is the last key."""
    among = torch.eye(q_len, dtype=torch.bool)
    for token in range(1, q_len):
        parent = int(torch.randint(token, (), generator=generator))
        among[token] |= among[parent]
    prefix = max(kv_len - q_len, 0)
    return torch.cat((torch.ones(q_len, prefix, dtype=torch.bool), among[:, q_len - (kv_len - prefix) :]), dim=1)


def _custom(q_len: int, kv_len: int, generator: torch.Generator, *, empty_rows: bool) -> torch.Tensor:
    """Rows that see few keys, some, most or all; with `empty_rows` also rows that see none."""
    shares = torch.tensor((*_SHARES, _NONE) if empty_rows else _SHARES)
    share = shares[torch.randint(len(shares), (q_len, 1), generator=generator)]
    mask = torch.rand(q_len, kv_len, generator=generator) < torch.where(share == 0, _FEW / max(kv_len, 1), share)
    if kv_len:
        one = torch.randint(kv_len, (q_len, 1), generator=generator)
        mask.scatter_(1, one, mask.gather(1, one) | (share != _NONE))
    return mask
