"""Attention over ragged requests, computed as padded batches in blocks of bounded size."""

from array import array
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate, groupby
from math import prod
from typing import NamedTuple

import torch
from torch.linalg import vector_norm

from attnfuzz.reference.problem import Problem, exact

_ONE_BATCH = {"cpu": 3_000_000, "cuda": 40_000_000}
"""Number of products wasted on padding that cost as much time as a separate batch: about 0.3 ms on one core."""

_QUERIES = 64
"""Query tokens per block for a request that exceeds a block by itself."""


def groups(problem: Problem, block: int) -> Iterator[list[int]]:
    """Group the requests that are padded to one batch: similar lengths, and dissimilar ones if one batch is faster.

    A group of several requests has at most `block` logits and key and value elements, padding included. Requests
    without queries are omitted.
    """

    def size(request: int) -> tuple[int, int]:
        return problem.q_lens[request].bit_length(), problem.kv_lens[request].bit_length()

    requests = [request for request, q_len in enumerate(problem.q_lens) if q_len]
    found: list[list[int]] = []
    for _, members in groupby(sorted(requests, key=size), key=size):
        group = list(members)
        if found and _together(problem, found[-1], group, block):
            found[-1] += group
        else:
            found.append(group)
    for group in found:
        each = block // max(_held(problem, group) // len(group), 1) or 1
        # If there is only one group, its output is then already in the problem's order.
        group.sort()
        for start in range(0, len(group), each):
            yield group[start : start + each]


def _together(problem: Problem, some: list[int], others: list[int], block: int) -> bool:
    """Return whether one batch is faster than two, although it has more padding."""
    both = [*some, *others]
    if _held(problem, both) > block:
        return False
    padding = _products(problem, both) - _products(problem, some) - _products(problem, others)
    return padding <= _ONE_BATCH[problem.key.device.type]


def _products(problem: Problem, requests: list[int]) -> int:
    """Return the number of products in a batch: logits, and three sums over values; an exp counts as several."""
    most_q, most_kv = _longest(problem, requests)
    each = problem.key.shape[2] + 3 * problem.value.shape[2] + _EXPONENTIAL
    return len(requests) * problem.query.shape[1] * most_q * most_kv * each


_EXPONENTIAL = 30


def _longest(problem: Problem, requests: list[int]) -> tuple[int, int]:
    return max(problem.q_lens[request] for request in requests), max(problem.kv_lens[request] for request in requests)


def _held(problem: Problem, requests: list[int]) -> int:
    """Return the number of logits and key and value elements in memory if `requests` form one batch."""
    most_q, most_kv = _longest(problem, requests)
    return len(requests) * most_kv * _held_per_key(problem, most_q)


def _held_per_key(problem: Problem, queries: int) -> int:
    _, kv_heads, dim_qk = problem.key.shape
    return problem.query.shape[1] * queries + kv_heads * (dim_qk + problem.value.shape[2])


def _starts(lengths: tuple[int, ...]) -> list[int]:
    return [0, *accumulate(lengths)]


def _rows(packed: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return packed[index] by index_select, which is faster than indexing."""
    return packed.index_select(0, index.flatten()).view(*index.shape, *packed.shape[1:])


def integers(values: list[int]) -> torch.Tensor:
    """Return an int64 tensor on the host, several times faster than torch.tensor does from a list."""
    return torch.frombuffer(array("q", values), dtype=torch.int64) if values else torch.zeros(0, dtype=torch.int64)


class Rows(NamedTuple):
    """The fp64 results of the tokens at `places` in the packed problem.

    `wide` are [tokens, Hq, Dv] and `narrow` is [columns, tokens, Hq] in the order of `OnlineSoftmax.finish`; with
    moments, the last column of `narrow` is `Moments.magnitude`.
    """

    places: torch.Tensor | slice
    wide: list[torch.Tensor]
    narrow: torch.Tensor


class Batch:
    """A group of B requests, padded to its longest: up to `most_q` queries and `most_kv` keys."""

    def __init__(self, problem: Problem, requests: list[int], *, moments: bool, block: int) -> None:
        self._problem, self._requests = problem, requests
        self._moments = moments
        self._q_lens = [problem.q_lens[request] for request in requests]
        self._kv_lens = [problem.kv_lens[request] for request in requests]
        self._most_q, self._most_kv = max(self._q_lens), max(*self._kv_lens, 1)
        self._packed = len(requests) == len(problem.q_lens)
        q_starts, kv_starts = _starts(problem.q_lens), _starts(problem.kv_lens)
        self._q_starts = [q_starts[request] for request in requests]
        self._kv_starts = [kv_starts[request] for request in requests]
        table = integers([*self._q_lens, *self._kv_lens, *self._q_starts, *self._kv_starts])
        columns = table.view(4, -1, 1).to(problem.query.device)
        self._q_len, self._kv_len, self._q_start, self._kv_start = columns.unbind()
        if _held(problem, requests) <= block:
            self._q_step, self._kv_step = self._most_q, self._most_kv
        else:
            self._q_step = min(_QUERIES, self._most_q)
            self._kv_step = max(block // (len(requests) * _held_per_key(problem, self._q_step)), 1)

    def answers(self) -> Iterator[Rows]:
        """Yield the results of one block of queries at a time."""
        for first in range(0, self._most_q, self._q_step):
            yield self._answer(first, min(first + self._q_step, self._most_q))

    def _answer(self, first: int, last: int) -> Rows:
        problem = self._problem
        kv_heads, group = problem.key.shape[1], problem.group
        query = self._query(first, last)
        softmax = OnlineSoftmax(moments=self._moments)
        key_norm = None
        for start in range(0, self._most_kv, self._kv_step):
            key, value = self._keys(start, min(start + self._kv_step, self._most_kv))
            logits = query @ key.transpose(-1, -2)
            if problem.soft_cap:
                logits = logits.div_(problem.soft_cap).tanh_().mul_(problem.soft_cap)
            hidden = self._hidden(first, last, start, start + key.shape[-2])
            if hidden is not None:
                logits.view(len(self._q_lens), kv_heads, last - first, group, -1).masked_fill_(hidden, -torch.inf)
            softmax.add(logits, value)
            if self._moments:
                norm = vector_norm(key, dim=-1).amax(dim=-1)
                key_norm = norm if key_norm is None else torch.maximum(key_norm, norm)
        wide, narrow = softmax.finish(self._sinks(last - first), problem.bmm2_scale)
        if key_norm is not None:
            narrow.append(vector_norm(query, dim=-1) * key_norm.unsqueeze(-1))
        places, order = self._order(first, last)
        return Rows(
            places,
            [_taken(each.flatten(0, -2), 0, order).view(-1, kv_heads * group, each.shape[-1]) for each in wide],
            _taken(torch.stack(narrow).flatten(1), 1, order).view(len(narrow), -1, kv_heads * group),
        )

    def _query(self, first: int, last: int) -> torch.Tensor:
        """Return queries [first, last) of each request, scaled: fp64 [B, Hkv, (last - first) * group, Dqk]."""
        packed = self._problem.query
        if len(self._q_lens) == 1:
            query = packed[self._q_starts[0] + first : self._q_starts[0] + last].unsqueeze(0)
        else:
            inside = torch.arange(first, last, device=packed.device).minimum(self._q_len - 1)
            query = _rows(packed, self._q_start + inside)
        kv_heads, group = self._problem.key.shape[1], self._problem.group
        split = query.view(len(self._q_lens), last - first, kv_heads, group, -1).transpose(1, 2)
        scaled = exact(split) * self._problem.bmm1_scale
        return scaled.view(len(self._q_lens), kv_heads, (last - first) * group, -1)

    def _keys(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values [start, end) of each request, fp64 [B, Hkv, end - start, dim].

        Past the end of a request, its last key is repeated.
        """
        packed = self._problem.key, self._problem.value
        if packed[0].shape[0] == 0:
            shapes = ((len(self._kv_lens), tensor.shape[1], end - start, tensor.shape[2]) for tensor in packed)
            key, value = (torch.zeros(shape, dtype=torch.float64, device=packed[0].device) for shape in shapes)
            return key, value
        if len(self._kv_lens) == 1 and end <= self._kv_lens[0]:
            keys = slice(self._kv_starts[0] + start, self._kv_starts[0] + end)
            key, value = (tensor[keys].unsqueeze(0) for tensor in packed)
        else:
            inside = torch.arange(start, end, device=packed[0].device).minimum(self._kv_len - 1).clamp_(min=0)
            index = (self._kv_start + inside).clamp_(max=packed[0].shape[0] - 1)
            key, value = (_rows(tensor, index) for tensor in packed)
        return exact(key.transpose(1, 2)), exact(value.transpose(1, 2))

    def _hidden(self, first: int, last: int, start: int, end: int) -> torch.Tensor | None:
        """Return a mask [B, 1, queries, 1, keys] of the keys that a query does not see, or None if it sees all."""
        problem = self._problem
        if problem.masks is not None:
            return self._masked_out[:, first:last, start:end].unsqueeze(2).unsqueeze(1)
        all_alike = min(self._kv_lens) == max(self._kv_lens) >= end
        if all_alike and problem.window_left < 0 and (self._most_q == 1 or not problem.causal):
            return None
        device = problem.query.device
        key = torch.arange(start, end, device=device)
        own = (self._kv_len - self._q_len + torch.arange(first, last, device=device)).unsqueeze(-1)
        hidden = key > own if problem.causal else key >= self._kv_len.unsqueeze(-1)
        if problem.window_left >= 0:
            hidden = hidden | (key < own - problem.window_left)
        return hidden.unsqueeze(2).unsqueeze(1)

    @cached_property
    def _masked_out(self) -> torch.Tensor:
        """The keys that each query does not see under its mask: bool [B, most_q, most_kv], True for padding."""
        hidden = torch.ones(len(self._requests), self._most_q, self._most_kv, dtype=torch.bool)
        for own, request in zip(hidden, self._requests, strict=True):
            seen = self._problem.seen_under_mask(request)
            own[: seen.shape[0], : seen.shape[1]] = ~seen
        return hidden.to(self._problem.query.device)

    def _sinks(self, queries: int) -> torch.Tensor | None:
        if self._problem.sinks is None:
            return None
        sinks = self._problem.sinks.to(torch.float64).view(1, self._problem.key.shape[1], self._problem.group)
        return sinks.repeat(1, 1, queries)

    def _order(self, first: int, last: int) -> tuple[torch.Tensor | slice, torch.Tensor | None]:
        """Return the packed indices of the block's tokens, and the order of their rows in [B, Hkv, queries, group].

        The order is None if all rows are used as they are.
        """
        alone, padded = len(self._q_lens) == 1, min(self._q_lens) < self._most_q
        places: torch.Tensor | slice
        real = None
        if alone:
            places = slice(self._q_starts[0] + first, self._q_starts[0] + last)
        elif self._packed and not padded:
            places = slice(None)
        else:
            query = torch.arange(first, last, device=self._q_len.device)
            real = query < self._q_len
            whole = self._packed and last - first == self._most_q
            places = slice(None) if whole else (self._q_start + query)[real]
        kv_heads, group = self._problem.key.shape[1], self._problem.group
        if real is None and 1 in (kv_heads, last - first):
            return places, None
        shape = len(self._q_lens), kv_heads, last - first, group
        order = torch.arange(prod(shape), device=self._q_len.device).view(shape).transpose(1, 2)
        return places, (order if real is None else order[real]).reshape(-1)


def _taken(rows: torch.Tensor, axis: int, order: torch.Tensor | None) -> torch.Tensor:
    return rows if order is None else rows.index_select(axis, order)


_FAR = 700.0
"""Distance from the largest logit at which a weight is below 1e-300. Larger distances, such as inf, are clamped."""

_LOWEST = torch.finfo(torch.float64).min


class OnlineSoftmax:
    """Running softmax of rows [..., M] over blocks of keys.

    Weights x_j = exp(logit_j - peak) are relative to the row's largest logit. The attributes are peak, total = sum x,
    weighted = sum x v and, with `moments`, squares = sum x^2, drop = sum x (peak - logit), power = sum x^2 v^2 and
    cross = sum x^2 v.
    """

    def __init__(self, *, moments: bool) -> None:
        self._moments = moments
        self._fresh = True
        self.peak = self.total = self.weighted = torch.empty(0)
        self.squares = self.drop = self.power = self.cross = torch.empty(0)

    def add(self, logits: torch.Tensor, value: torch.Tensor) -> None:
        """Add keys: logits [..., M, k], -inf where hidden, and value [..., k, Dv], both fp64."""
        before = self.peak
        peak = logits.amax(dim=-1)
        if not self._fresh:
            peak = torch.maximum(peak, before)
        self.peak = peak
        base = peak.clamp(min=_LOWEST)
        below = logits.sub_(base.unsqueeze(-1))
        if not self._moments:
            x = below.exp()
            sums = [x.sum(dim=-1), x @ value]
        else:
            # One matmul computes the sums of both powers of x.
            powers = below.new_empty((*below.shape[:-2], 2, *below.shape[-2:]))
            x, x2 = powers.unbind(dim=-3)
            torch.exp(below, out=x)
            torch.mul(x, x, out=x2)
            weighted, cross = (powers.flatten(-3, -2) @ value).chunk(2, dim=-2)
            distance = (x * below.clamp_(min=-_FAR)).sum(dim=-1).neg_()
            totals, squares = powers.sum(dim=-1).unbind(dim=-2)
            sums = [totals, weighted, squares, distance, x2 @ (value * value), cross]
        if not self._fresh:
            sums = self._rescaled(sums, (base - before).clamp_(max=_FAR))
        self._fresh = False
        self.total, self.weighted = sums[:2]
        if self._moments:
            self.squares, self.drop, self.power, self.cross = sums[2:]

    def _rescaled(self, sums: list[torch.Tensor], growth: torch.Tensor) -> list[torch.Tensor]:
        """Add the new keys' `sums` to the earlier ones, whose peak has grown by `growth` [..., M]."""
        decay = torch.exp(-growth)
        wide = decay.unsqueeze(-1)
        result = [sums[0] + self.total * decay, sums[1] + self.weighted * wide]
        if self._moments:
            drop = (self.drop + self.total * growth) * decay
            result += [sums[2] + self.squares * decay * decay, sums[3] + drop]
            result += [sums[4] + self.power * wide * wide, sums[5] + self.cross * wide * wide]
        return result

    def finish(self, sinks: torch.Tensor | None, scale: float) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return two lists: out, times `scale` [..., M, Dv], and lse [..., M].

        With moments, the first list also has power and spread, and the second has concentration, gap, p_peak and peak,
        all as `Moments` defines them. sinks [..., M] are natural logits. Rows that see no key have out = 0, and lse =
        -inf or the sink. Call this once: `power` and `cross` are overwritten.
        """
        lse = self.peak + self.total.log()
        peak = self.peak
        if sinks is not None:
            lse = torch.logaddexp(lse, sinks)
            peak = torch.maximum(peak, sinks)
        p_peak = torch.exp(self.peak - lse.clamp(min=_LOWEST))
        wide = p_peak.unsqueeze(-1)
        out = self.weighted * (wide * scale)
        if not self._moments:
            return [out], [lse]
        squared = wide * wide
        power, cross = self.power.mul_(squared), self.cross.mul_(squared).mul_(2 * scale)
        if scale != 1:
            power.mul_(scale * scale)
        concentration = self.squares * p_peak * p_peak
        spread = (out * concentration.unsqueeze(-1)).sub_(cross).mul_(out).add_(power).clamp_(min=0)
        gap = self.drop / self.total.clamp(min=1.0)
        return [out, power, spread], [lse, concentration, gap, p_peak, peak.masked_fill(peak == -torch.inf, 0.0)]
