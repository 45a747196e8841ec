"""Errors of known size, planted in closed form in a correct kernel's output and rounded like that output."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import log

import torch
from decode_batch import PAGE_SIZE, DecodeBatch

from attnfuzz.harness.search.examples import derive_seed

_ROWS = 20
"""Number of rows that the trials alternate between: the judge's most expensive step is done once for each."""

_MOST_PAGES = 32
"""Most pages that a whole request may miss: every judge finds fewer than that."""

_EQUAL = 1 + 1e-9
"""Largest ratio of a row's largest weight to its average weight for which they count as equal."""

Wrong = tuple[torch.Tensor, torch.Tensor | None]
"""An output with an error: out [requests, heads, dim] in the output's dtype, lse [requests, heads], if there is one."""


@dataclass(frozen=True)
class ErrorKind:
    """A way to be wrong. `sizes` gives sensible sizes for a number of keys; `plant` takes a size and a trial.

    Trials repeat after `different` ones.
    """

    name: str
    sizes: Callable[[int], Sequence[float]]
    plant: Callable[[DecodeBatch, float, int], Wrong]
    different: int = 100


def _counts(length: int, unit: int = 1) -> list[float]:
    """Return 1, 2, 3, 4, 6, 8, 12, ... units of keys, up to half of all keys."""
    ladder = sorted({base << power for base in (1, 3) for power in range(20)})
    return [count for count in ladder if 2 * count * unit <= length]


def _shares(_length: int) -> list[float]:
    return [digit * 10.0**power for power in range(-8, 0) for digit in (1, 2, 5)]


def _wrong_values(batch: DecodeBatch, size: float, trial: int) -> Wrong:
    request, heads, generator = _one_row(batch, trial)
    swapped = torch.randperm(batch.length, generator=generator)[: 2 * int(size)]
    weights, values = _weighed(batch, request, heads, swapped)
    wrong = values.roll(len(swapped) // 2, dims=1)[:, : int(size)]
    return _planted(batch, request, heads, _summed(weights[:, : int(size)], wrong - values[:, : int(size)]))


def _dropped(batch: DecodeBatch, size: float, trial: int, *, unit: int, whole_request: bool) -> Wrong:
    """Ignore `size` units of neighbouring keys, in one row or in all rows of a request."""
    request, heads, generator = _one_row(batch, trial)
    if whole_request:
        heads = slice(None)
    starts = torch.randperm(batch.length // unit, generator=generator)[: int(size)] * unit
    keys = (starts.unsqueeze(1) + torch.arange(unit)).flatten()
    weights, values = _weighed(batch, request, heads, keys)
    lost = weights.sum(dim=-1, keepdim=True)
    out = batch.budget.answer.out[request, heads]
    change = (out * lost - _summed(weights, values)) / (1 - lost)
    return _planted(batch, request, heads, change, torch.log1p(-lost.squeeze(-1)))


def _scaled(batch: DecodeBatch, size: float, trial: int) -> Wrong:
    """Scale all rows by 1 + x or 1 - x. Random signs of the kernel's own error make the trials differ."""
    answer = batch.budget.answer.out
    generator = torch.Generator().manual_seed(trial)
    signs = torch.randint(0, 2, answer.shape[:2], generator=generator).mul_(2).sub_(1).unsqueeze(-1)
    wrong = answer * (1 - size if trial % 2 else 1 + size) + (batch.unrounded - answer) * signs
    return wrong.to(batch.out.dtype), batch.lse


def _shifted_lse(batch: DecodeBatch, size: float, trial: int) -> Wrong:
    assert batch.lse is not None
    shift = size * log(2.0) / batch.evidence.lse_unit
    return batch.out, batch.lse + (-shift if trial % 2 else shift)


_ONE_PAGE = partial(_counts, unit=PAGE_SIZE)


def _few_pages(length: int) -> list[float]:
    """Return counts small enough to be worth a product of all heads with all of their keys."""
    return [count for count in _ONE_PAGE(length) if count <= _MOST_PAGES]


IN_ONE_ROW = (
    ErrorKind("tokens with the value of another, one row", _counts, _wrong_values),
    ErrorKind("tokens dropped, one row", _counts, partial(_dropped, unit=1, whole_request=False)),
    ErrorKind("pages of 16 tokens dropped, one row", _ONE_PAGE, partial(_dropped, unit=PAGE_SIZE, whole_request=False)),
)

IN_MANY_ROWS = (
    ErrorKind(
        "pages of 16 tokens dropped, one request's rows",
        _few_pages,
        partial(_dropped, unit=PAGE_SIZE, whole_request=True),
    ),
    ErrorKind("out times 1 + x, all rows", _shares, _scaled, different=10),
    ErrorKind("lse + x in base 2, all rows", _shares, _shifted_lse, different=2),
)


def _one_row(batch: DecodeBatch, trial: int) -> tuple[int, slice, torch.Generator]:
    """Return the row of a trial, as a request and its head, and a generator for the rest.

    If some rows have equal weights, as half of a probe's do, one of these is chosen.
    """
    rows = torch.arange(batch.budget.answer.lse.numel())
    equal = rows[(batch.budget.moments.p_peak * batch.length < _EQUAL).flatten()]
    rows = equal if len(equal) else rows
    chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(batch.length))[trial % _ROWS % len(rows)]
    request, head = divmod(int(rows[chosen]), batch.out.shape[1])
    seed = derive_seed(trial, batch.length) >> 2
    return request, slice(head, head + 1), torch.Generator().manual_seed(seed)


def _weighed(batch: DecodeBatch, request: int, heads: slice, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax weights [heads, keys] and scaled values [kv heads, keys, dim] of some keys of a request, in fp64.

    `heads` are one head, or all.
    """
    problem, (query, key, value) = batch.budget.problem, batch.tokens(request)
    queries = query[heads].double()
    first = (heads.start or 0) * key.shape[1] // query.shape[0]
    own = slice(first, None if len(queries) == len(query) else first + 1)
    key, value = (tokens[keys, own].double().transpose(0, 1) for tokens in (key, value))
    logits = queries.view(len(key), -1, key.shape[-1]) @ key.transpose(1, 2) * problem.bmm1_scale
    lse = batch.budget.answer.lse[request, heads].unsqueeze(-1)
    return torch.exp(logits.view(len(queries), -1) - lse), value * problem.bmm2_scale


def _summed(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the sums [heads, dim] of values [kv heads, keys, dim] with these weights [heads, keys]."""
    return (weights.view(len(values), -1, weights.shape[-1]) @ values).view(len(weights), -1)


def _planted(
    batch: DecodeBatch, request: int, heads: slice, change: torch.Tensor, lse_change: torch.Tensor | None = None
) -> Wrong:
    """Return the kernel's output with `change` [heads, dim] and the natural `lse_change` [heads] in some rows."""
    out, lse = batch.out.clone(), batch.lse
    out[request, heads] = (batch.unrounded[request, heads] + change).to(out.dtype)
    if lse is not None and lse_change is not None:
        lse = lse.clone()
        lse[request, heads] += (lse_change / batch.evidence.lse_unit).to(lse.dtype)
    return out, lse
