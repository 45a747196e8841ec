"""Masks: the keys that queries see, drawn from the seed of a case.

The mask of a request depends on its sequence and its lengths, but not on the other requests of its step or its index
among them. So a batch that is permuted, extended or replayed keeps its masks.
"""

import torch

from attnfuzz.reference.case import Case, Mask, Mode, Request, Step
from attnfuzz.reference.chance import mixed

_STREAM = 1_000_033
"""A stream that neither tokens nor sinks use: there are fewer sequences and steps."""

_FEW = 2.0
"""Mean number of keys that a row with few keys sees, besides the one that every row sees."""

_ALL, _NONE = 2.0, -1.0
_SHARES = (0.0, 0.0, _ALL, 0.5, 0.9)
"""Shares of the keys that rows of a custom mask see, equally likely; 0 means few keys."""


def applies(case: Case, step: Step) -> bool:
    """Return whether the mask of `step` is not causal. Trees only apply to verify steps; chunks need a mask."""
    if case.geometry.attention_chunk:
        return True
    if case.mask is Mask.TREE:
        return step.mode is Mode.TARGET_VERIFY
    return case.mask is not Mask.CAUSAL


def mask_of(case: Case, step: Step, request: Request) -> torch.Tensor | None:
    """Return a request's mask in `step`, bool [q_len, kv_len], True where a query sees a key; None if it is causal.

    The window of the geometry cuts off further keys on the left. The tensor is on the host.
    """
    if not applies(case, step):
        return None
    shape = (request.q_len, request.kv_len)
    if case.geometry.attention_chunk:
        return _within_chunks(*shape, case.geometry.attention_chunk)
    if case.mask is Mask.FULL:
        return _up_to(*shape, case.geometry.window_right)
    generator = torch.Generator()
    seed = mixed(mixed(case.seed, _STREAM), request.slot)
    generator.manual_seed(mixed(mixed(seed, request.q_len), request.kv_len))
    if case.mask is Mask.TREE:
        return _tree(*shape, generator)
    if case.mask is Mask.INTERVALS:
        return _intervals(*shape, generator)
    return _custom(*shape, generator, empty_rows=case.mask is Mask.EMPTY_ROWS)


def _up_to(q_len: int, kv_len: int, right: int) -> torch.Tensor:
    """Return the mask of queries that see all keys, or those up to `right` keys after their own if that is not -1."""
    if right < 0:
        return torch.ones(q_len, kv_len, dtype=torch.bool)
    own = torch.arange(kv_len - q_len, kv_len).unsqueeze(1)
    return torch.arange(kv_len) <= own + right


def _intervals(q_len: int, kv_len: int, generator: torch.Generator) -> torch.Tensor:
    """Return rows that see an interval of keys: both of its ends, drawn among all keys, grow with the query."""
    if not kv_len:
        return torch.zeros(q_len, 0, dtype=torch.bool)
    ends = torch.randint(kv_len, (2, q_len, 1), generator=generator).sort(dim=1).values
    key = torch.arange(kv_len)
    return (key >= ends.amin(dim=0)) & (key <= ends.amax(dim=0))


def _within_chunks(q_len: int, kv_len: int, chunk: int) -> torch.Tensor:
    """Return the mask of a causal step whose queries see the keys of their own chunks."""
    own = torch.arange(kv_len - q_len, kv_len).unsqueeze(1)
    key = torch.arange(kv_len)
    return (key <= own) & (key // chunk == own // chunk)


def _tree(q_len: int, kv_len: int, generator: torch.Generator) -> torch.Tensor:
    """Return a mask of the prefix and each draft token's ancestors, in a tree whose root is the first draft token.

    The last draft token is the last key.
    """
    among = torch.eye(q_len, dtype=torch.bool)
    for token in range(1, q_len):
        parent = int(torch.randint(token, (), generator=generator))
        among[token] |= among[parent]
    prefix = max(kv_len - q_len, 0)
    return torch.cat((torch.ones(q_len, prefix, dtype=torch.bool), among[:, q_len - (kv_len - prefix) :]), dim=1)


def _custom(q_len: int, kv_len: int, generator: torch.Generator, *, empty_rows: bool) -> torch.Tensor:
    """Return rows that see few keys, some, most or all; with `empty_rows` also rows that see none."""
    shares = torch.tensor((*_SHARES, _NONE) if empty_rows else _SHARES)
    share = shares[torch.randint(len(shares), (q_len, 1), generator=generator)]
    mask = torch.rand(q_len, kv_len, generator=generator) < torch.where(share == 0, _FEW / max(kv_len, 1), share)
    if kv_len:
        one = torch.randint(kv_len, (q_len, 1), generator=generator)
        mask.scatter_(1, one, mask.gather(1, one) | (share != _NONE))
    return mask
