"""Single rows: the softmax weights of a query token and head, and the values that they weigh."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch

from attnfuzz.reference.problem import Problem, exact

EQUAL = 1e-11
"""Relative difference below which two weights are equal. The fp64 error of products of hundreds of elements is less."""

_ONE_SIGN = 0.9
"""Share of a sum without cancellation, above which nearly all of its terms have one sign."""

_DIRECTION_SEED = 0x4B


def row_weights(problem: Problem, token: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights [k] and values [k, Dv] (times bmm2_scale) of the k keys that the row sees, in fp64.

    The weights add up to 1, or to less with a sink.
    """
    keys = _seen(problem, token)
    return _weights(problem, token, head, keys), _values(problem, head, keys)


def seen_positions(problem: Problem, token: int) -> torch.Tensor:
    """Return the positions in its request of the keys that a token sees, int64 [k], in their order."""
    request, _ = _request_of(problem, token)
    keys = _seen(problem, token)
    packed = torch.arange(keys.start, keys.stop) if isinstance(keys, slice) else keys
    return packed - sum(problem.kv_lens[:request])


def tied_row(problem: Problem, token: int, head: int, near: float = EQUAL) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return `row_weights` if two weights differ by a share of at most `near`, else None without reading values."""
    keys = _seen(problem, token)
    weights = _weights(problem, token, head, keys)
    ordered = weights.sort().values
    if not (ordered.diff() <= near * ordered[1:]).any():
        return None
    return weights, _values(problem, head, keys)


@dataclass(frozen=True)
class HeadRows:
    """Some rows of one request that share a KV head. The tokens and heads are slices of the packed problem.

    All are fp64. `weights` [tokens, heads, k] are 0 where a key is hidden; those of a row add up to 1, or to less with
    a sink. `queries` [tokens, heads, Dqk] include bmm1_scale, `values` [k, Dv] include bmm2_scale; `key` is [k, Dqk].
    """

    tokens: slice
    heads: slice
    keys: slice
    kv_head: int
    weights: torch.Tensor
    queries: torch.Tensor
    key: torch.Tensor
    values: torch.Tensor

    def coherent_logits(self) -> torch.Tensor:
        """Return `coherent_logits` of these rows, [tokens, heads, k]."""
        return _coherent(self.queries, self.key)


def head_rows(problem: Problem, most: int) -> Iterator[HeadRows]:
    """Yield all rows that see keys, in blocks of at most `most` weights, or of one row."""
    q_end = kv_end = 0
    for request, (q_len, kv_len) in enumerate(zip(problem.q_lens, problem.kv_lens, strict=True)):
        q_end, kv_end = q_end + q_len, kv_end + kv_len
        if kv_len:
            for kv_head in range(problem.key.shape[1]):
                yield from _rows_of_head(problem, request, slice(kv_end - kv_len, kv_end), kv_head, q_end, most)


def _rows_of_head(
    problem: Problem, request: int, keys: slice, kv_head: int, q_end: int, most: int
) -> Iterator[HeadRows]:
    """Yield the rows of one KV head, for a request whose queries end at `q_end`."""
    group = slice(kv_head * problem.group, (kv_head + 1) * problem.group)
    key, values = _own(problem, problem.key, group.start, keys), _values(problem, group.start, keys)
    for tokens in _pieces(slice(q_end - problem.q_lens[request], q_end), most // (len(key) * problem.group)):
        own = torch.arange(tokens.start, tokens.stop, device=key.device).view(-1, 1, 1) - q_end + len(key)
        hidden = _hidden(problem, request, own)
        for heads in _pieces(group, most // (len(key) * (tokens.stop - tokens.start))):
            queries = exact(problem.query[tokens, heads]) * problem.bmm1_scale
            weights = _softmax(problem, queries @ key.T, heads, hidden).nan_to_num_(nan=0.0)
            yield HeadRows(tokens, heads, keys, kv_head, weights, queries, key, values)


def _pieces(whole: slice, most: int) -> Iterator[slice]:
    """Yield consecutive pieces of at most `most`, or of 1."""
    size = max(most, 1)
    for first in range(whole.start, whole.stop, size):
        yield slice(first, min(first + size, whole.stop))


def _hidden(problem: Problem, request: int, own: torch.Tensor) -> torch.Tensor:
    """Return which keys consecutive queries of a request don't see, bool [n, 1, kv_len].

    `own` [n, 1, 1] are the indices of the queries' own keys.
    """
    kv_len = problem.kv_lens[request]
    if problem.masks is not None:
        first = int(own[0]) - kv_len + problem.q_lens[request]
        seen = problem.seen_under_mask(request, slice(first, first + len(own)))
        return ~seen.unsqueeze(1).to(own.device)
    at = torch.arange(kv_len, device=own.device)
    hidden = at > own if problem.causal else torch.zeros_like(at > own)
    return hidden | (at < own - problem.window_left) if problem.window_left >= 0 else hidden


def coherent_logits(problem: Problem, token: int, head: int) -> torch.Tensor:
    """Return the row's |logits| before the soft cap, fp64 [k]; 0 for a logit whose terms have mixed signs."""
    key = _own(problem, problem.key, head, _seen(problem, token))
    query = exact(problem.query[token, head]) * problem.bmm1_scale
    return _coherent(query, key)


def _coherent(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    logits = (query @ key.T).abs()
    return logits.where(logits > _ONE_SIGN * (query.abs() @ key.abs().T), 0.0)


def key_marks(problem: Problem, token: int, head: int) -> torch.Tensor:
    """Return a number per key that the row sees, fp64 [k], by which copies of a key are recognized.

    It is the key's component along a fixed direction, relative to the largest. Copies of one key have the same number
    to within `EQUAL`; other keys almost surely differ.
    """
    key = _own(problem, problem.key, head, _seen(problem, token))
    generator = torch.Generator().manual_seed(_DIRECTION_SEED)
    direction = torch.randn(key.shape[1], generator=generator, dtype=torch.float64).to(key.device)
    along = key @ direction
    return along / along.abs().amax().clamp(min=torch.finfo(torch.float64).tiny) if len(along) else along


def _request_of(problem: Problem, token: int) -> tuple[int, int]:
    """Return the request of a packed token, and the end of that request's tokens."""
    return next((index, end) for index, end in enumerate(accumulate(problem.q_lens)) if token < end)


def _seen(problem: Problem, token: int) -> slice | torch.Tensor:
    """Return the packed keys that a token sees: a slice, or their indices under a mask."""
    request, end = _request_of(problem, token)
    kv_len, start = problem.kv_lens[request], sum(problem.kv_lens[:request])
    if problem.masks is not None:
        in_request = token - (end - problem.q_lens[request])
        seen = problem.seen_under_mask(request, slice(in_request, in_request + 1))[0]
        return start + seen.nonzero().flatten()
    own = kv_len - (end - token)
    first = max(own - problem.window_left, 0) if problem.window_left >= 0 else 0
    last = own + 1 if problem.causal else kv_len
    return slice(start + first, start + max(last, first))


def _weights(problem: Problem, token: int, head: int, keys: slice | torch.Tensor) -> torch.Tensor:
    key = _own(problem, problem.key, head, keys)
    logits = key @ (exact(problem.query[token, head]) * problem.bmm1_scale)
    return _softmax(problem, logits.unsqueeze(0), slice(head, head + 1)).squeeze(0)


def _softmax(problem: Problem, logits: torch.Tensor, heads: slice, hidden: torch.Tensor | None = None) -> torch.Tensor:
    """Return the weights of scaled products [..., heads, k]; `hidden` broadcasts to them."""
    if problem.soft_cap:
        logits = torch.tanh(logits / problem.soft_cap) * problem.soft_cap
    if hidden is not None:
        logits = logits.masked_fill(hidden, -torch.inf)
    if problem.sinks is not None:
        sinks = problem.sinks[heads].to(logits).unsqueeze(-1).expand(*logits.shape[:-1], 1)
        logits = torch.cat((logits, sinks), dim=-1)
    return torch.softmax(logits, dim=-1)[..., : logits.shape[-1] - (problem.sinks is not None)]


def _values(problem: Problem, head: int, keys: slice | torch.Tensor) -> torch.Tensor:
    return _own(problem, problem.value, head, keys) * problem.bmm2_scale


def _own(problem: Problem, tokens: torch.Tensor, head: int, keys: slice | torch.Tensor) -> torch.Tensor:
    """Return the keys or values that a head attends to, in fp64 on the device of the queries."""
    return exact(tokens[keys, head // problem.group].to(problem.query.device))
