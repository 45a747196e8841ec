"""Attention and its log-sum-exp in fp64: the reference for every kernel. Pure torch, on any device.

The computation runs on the device of the keys and values; the result is on the device of the queries.
"""

from dataclasses import replace

import torch

from attnfuzz.reference.problem import Answer, Moments, Problem
from attnfuzz.reference.ragged import Batch, groups, integers

_BLOCK = {"cpu": 1 << 21, "cuda": 1 << 25}
"""Default maximum number of logits and of key and value elements per block: 16 MiB in fp64 on a CPU. A GPU gets larger
blocks, because each launch is expensive there.
"""


def attend(problem: Problem, *, moments: bool = False, block: int | None = None) -> Answer:
    """Compute the output and LSE of a problem in fp64, and with `moments` also the moments for error bounds.

    `block` is the maximum number of logits and of key and value elements in memory at once. The working set is a few
    tensors of this size, plus the answer itself.
    """
    here, there = problem.query.device, problem.key.device
    visible = _visible(problem)
    if there != here:
        sinks = None if problem.sinks is None else problem.sinks.to(there)
        problem = replace(problem, query=problem.query.to(there), sinks=sinks)
    wide, narrow = _rows(problem, moments=moments, block=block or _BLOCK[there.type])
    if there != here:
        wide, narrow = [each.to(here) for each in wide], narrow.to(here)
    out, *others = wide
    lse, *columns = narrow.unbind()
    return Answer(out, lse, visible, Moments(*others, *columns) if moments else None)


def _rows(problem: Problem, *, moments: bool, block: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the wide and narrow columns of all rows, as defined by `Rows`."""
    tokens, q_heads, _ = problem.query.shape
    wides, narrows = (3, 6) if moments else (1, 1)

    def room(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float64, device=problem.key.device)

    wide: list[torch.Tensor] = []
    narrow = room(narrows, tokens, q_heads)
    for requests in groups(problem, block):
        for found in Batch(problem, requests, moments=moments, block=block).answers():
            if found.narrow.shape[1] == tokens and isinstance(found.places, slice):
                return found.wide, found.narrow
            wide = wide or [room(tokens, q_heads, problem.value.shape[2]) for _ in range(wides)]
            for whole, part in zip(wide, found.wide, strict=True):
                whole[found.places] = part
            narrow[:, found.places] = found.narrow
    return wide or [room(tokens, q_heads, problem.value.shape[2]) for _ in range(wides)], narrow


def _visible(problem: Problem) -> torch.Tensor:
    """Return the number of keys that each query sees, int64 [T]."""
    if problem.masks is not None:
        seen = [problem.seen_under_mask(request).sum(dim=1) for request in range(len(problem.masks))]
        return torch.cat(seen or [torch.zeros(0, dtype=torch.int64)]).to(problem.query.device)
    counts: list[int] = []
    for q_len, kv_len in zip(problem.q_lens, problem.kv_lens, strict=True):
        for own in range(kv_len - q_len, kv_len):
            end = own + 1 if problem.causal else kv_len
            begin = max(own - problem.window_left, 0) if problem.window_left >= 0 else 0
            counts.append(max(end - begin, 0))
    return integers(counts).to(problem.query.device)
