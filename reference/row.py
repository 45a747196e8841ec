"""A single row: the softmax weights of one query token and head, and the values that they weigh."""

from itertools import accumulate

import torch

from attnfuzz.reference.problem import Problem, exact

EQUAL = 1e-11
"""Relative difference below which two weights are equal: fp64 products of hundreds of elements differ by less."""

_DIRECTION_SEED = 0x4B


def row_weights(problem: Problem, token: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights [k] and values [k, Dv] (times bmm2_scale) of the k keys that the row sees, in fp64.

    The weights add up to 1, or to less with a sink.
    """
    keys = _seen(problem, token)
    return _weights(problem, token, head, keys), _values(problem, head, keys)


def tied_row(problem: Problem, token: int, head: int) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Like `row_weights` if two weights are equal; None if all differ, which is found without the values."""
    keys = _seen(problem, token)
    weights = _weights(problem, token, head, keys)
    ordered = weights.sort().values
    if not (ordered.diff() <= EQUAL * ordered[1:]).any():
        return None
    return weights, _values(problem, head, keys)


def key_marks(problem: Problem, token: int, head: int) -> torch.Tensor:
    """A number per key that the row sees, fp64 [k]: its component along a fixed direction, relative to the largest.

    Copies of one key have the same number to within `EQUAL`; other keys almost surely differ.
    """
    key = _own(problem, problem.key, head, _seen(problem, token))
    generator = torch.Generator().manual_seed(_DIRECTION_SEED)
    direction = torch.randn(key.shape[1], generator=generator, dtype=torch.float64).to(key.device)
    along = key @ direction
    return along / along.abs().amax().clamp(min=torch.finfo(torch.float64).tiny) if len(along) else along


def _seen(problem: Problem, token: int) -> slice:
    """The packed keys that a token sees."""
    ends = list(accumulate(problem.q_lens))
    request = next(index for index, end in enumerate(ends) if token < end)
    kv_len = problem.kv_lens[request]
    own = kv_len - (ends[request] - token)
    first = max(own - problem.window_left, 0) if problem.window_left >= 0 else 0
    last = own + 1 if problem.causal else kv_len
    start = sum(problem.kv_lens[:request])
    return slice(start + first, start + max(last, first))


def _weights(problem: Problem, token: int, head: int, keys: slice) -> torch.Tensor:
    key = _own(problem, problem.key, head, keys)
    logits = key @ (exact(problem.query[token, head]) * problem.bmm1_scale)
    if problem.soft_cap:
        logits = torch.tanh(logits / problem.soft_cap) * problem.soft_cap
    if problem.sinks is not None:
        logits = torch.cat((logits, problem.sinks[head : head + 1].to(torch.float64)))
    return torch.softmax(logits, dim=0)[: key.shape[0]]


def _values(problem: Problem, head: int, keys: slice) -> torch.Tensor:
    return _own(problem, problem.value, head, keys) * problem.bmm2_scale


def _own(problem: Problem, tokens: torch.Tensor, head: int, keys: slice) -> torch.Tensor:
    """The keys or values that a head attends to, in fp64 on the device of the queries."""
    return exact(tokens[keys, head // problem.group].to(problem.query.device))
