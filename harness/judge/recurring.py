"""Rounding errors that recur: equal numbers are rounded alike, in every row.

T3 assumes that the errors of different rows are coin flips. They are not if the weights of all rows take the same few
values, because logits do or because a small soft cap saturates: a weight rounded up in one row is rounded up in all.

A rounding error is a sawtooth in the number that is rounded, from -u to u within each step of the format. Its phase
depends on the logit that the kernel takes for a row's largest. So weights are sorted by their ratio to the row's
largest one into cells as wide as a step, and within these into bins; each bin adds up its weights' effects on T3's sum
per unit of error. A cell adds at most u times the sum over its bins of sawtooth times bin, at the worst phase. That is
near 0 for weights that are spread evenly in the cell, however many: errors within a step cancel. Chance leaves a
remainder, which is subtracted because T3's coin flips count it already. Roundings of different cells are independent,
so their sum obeys Hoeffding's inequality.

The same applies to logits rounded to 16 bits (`NoiseModel.logits`), and their distances from the largest
(`NoiseModel.shifted`). The error of a soft cap (`NoiseModel.tanh`) is a function of the logit without a known sign;
that of rounded keys and values (`NoiseModel.operands`) is the same for all queries; and logits that are sums of terms
of one sign are rounded to one side (`coherent_logits`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import NamedTuple

import torch

from attnfuzz.harness.judge.error_budget import UNIFORM, ErrorBudget
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.row import HeadRows, head_rows

_BINS = 16
"""Bins of a cell, and phases of the sawtooth."""

_PHASES = torch.arange(_BINS)
SAWTOOTH = ((_PHASES + _PHASES.unsqueeze(1)) % _BINS).to(torch.float64) / (_BINS - 1) * 2 - 1
"""The sawtooth in each bin, one row per phase."""

CHANCE = 2.0
"""Multiple of the root of a cell's summed squares that chance leaves: 3.4 standard deviations of a sawtooth."""

_LOWEST = 104.0
"""Distance from the largest logit beyond which all weights are in one cell: their exponential is 0 in fp32."""

_EXACT = 2.0**-22
"""Distance from the largest logit at which a weight has the error of the largest one (`NoiseModel.peak`)."""

_SMALLEST_LOGIT, _LARGEST_LOGIT = 2.0**-16, 2.0**12
"""Sizes of logits beyond which all are in one cell."""

_FINE = 2.0**-16
"""Errors of at most this size come from sums in fp32: they depend on the order of the sum, and don't recur."""

_CAP_CELLS = 64
"""Cells of capped logits, from -cap to cap."""

_AT_ONCE = 1 << 21
"""Number of weights in memory at once."""


@dataclass(frozen=True)
class Statistic:
    """The sum over rows of sum_j d_j p_j (v_j . direction) - e_j p_j against, for relative errors d and e of weights.

    `direction` [T, Hq, Dv] is None if the values have no effect, as for an LSE. `against` is [T, Hq]. Both are 0 in
    rows that are left out.
    """

    direction: torch.Tensor | None
    against: torch.Tensor

    def equals(self, other: "Statistic") -> bool:
        """Return whether all numbers are equal."""
        if self.direction is None or other.direction is None:
            alike = self.direction is other.direction
        else:
            alike = torch.equal(self.direction, other.direction)
        return alike and torch.equal(self.against, other.against)


def recurring_error(budget: ErrorBudget, statistic: Statistic, deviations: float) -> float:
    """Return the maximum that recurring errors of a correct kernel add to a statistic, up to `deviations` of chance.

    This computes the weights of all rows. It is cached, since a statistic does not depend on the judged output.
    """
    return remembered_error("recurring", _recurring_error, budget, statistic, deviations)


def remembered_error(
    name: str,
    compute: Callable[[ErrorBudget, Statistic, float], float],
    budget: ErrorBudget,
    statistic: Statistic,
    deviations: float,
) -> float:
    """Return `compute(budget, statistic, deviations)`, cached per budget."""
    known: list[tuple[Statistic, float, float]] = budget.memo.setdefault(name, [])
    for other, at, error in known:
        if at == deviations and statistic.equals(other):
            return error
    known.append((statistic, deviations, compute(budget, statistic, deviations)))
    return known[-1][-1]


def _recurring_error(budget: ErrorBudget, statistic: Statistic, deviations: float) -> float:
    noise, device = budget.noise, budget.answer.out.device
    sources = [(source, _Cells(source.cells, device)) for source in _sources(noise, budget.problem.soft_cap)]
    by_value, by_key = (
        torch.zeros_like(operand, dtype=torch.float64, device=device) if noise.operands else None
        for operand in (budget.problem.value, budget.problem.key)
    )
    scaled = summed = 0.0
    for rows in head_rows(budget.problem, _AT_ONCE):
        terms = _Terms.of(budget, statistic, rows)
        scaled += float((terms.shifted * terms.logit).sum())
        summed += float((terms.shifted * rows.coherent_logits()[terms.counted]).abs().sum())
        if by_key is not None:
            shifted = torch.zeros_like(rows.weights)
            shifted[terms.counted] = terms.shifted
            by_key[rows.keys, rows.kv_head] += torch.einsum("thk,thd->kd", shifted, rows.queries) * rows.key
        for source, cells in sources:
            cells.add(source.place(terms), source.terms(terms))
        if by_value is not None and statistic.direction is not None:
            direction = statistic.direction[rows.tokens, rows.heads]
            by_value[rows.keys, rows.kv_head] += torch.einsum("thk,thd->kd", rows.weights, direction) * rows.values
    error = noise.logit_scale * abs(scaled) + budget.coherent_roundoff * summed
    error += sum(source.error * cells.bound(deviations, sawtooth=source.sawtooth) for source, cells in sources)
    operands = (each for each in (by_value, by_key) if each is not None)
    return error + noise.operands * sum(hoeffding(each, deviations) for each in operands)


def hoeffding(bounds: torch.Tensor, deviations: float) -> float:
    """Return a bound on a sum of independent errors with these `bounds`: at most the sum of all."""
    return min(deviations * float(bounds.norm()), float(bounds.abs().sum()))


class _Terms(NamedTuple):
    """The terms of a statistic in some rows, flat and without zeros.

    A relative error in the numerator of the softmax is multiplied by `weighted`, one in its denominator by `summed`.
    `below` is the logit's distance from the row's largest one, `shift` that from the largest one or the sink, `logit`
    the logit as it is exponentiated. `counted` are the places of the terms, bool [tokens, heads, k].
    """

    weighted: torch.Tensor
    summed: torch.Tensor
    below: torch.Tensor
    shift: torch.Tensor
    logit: torch.Tensor
    counted: torch.Tensor

    @classmethod
    def of(cls, budget: ErrorBudget, statistic: Statistic, rows: HeadRows) -> "_Terms":
        """Return the terms of these rows."""
        place = rows.tokens, rows.heads
        against = statistic.against[place].unsqueeze(-1)
        counts = (rows.weights > 0) & (against != 0)
        weighted = torch.zeros_like(rows.weights)
        if statistic.direction is not None:
            weighted = rows.weights * (statistic.direction[place] @ rows.values.T)
        logarithm = rows.weights[counts].log()

        def of_each(row: torch.Tensor) -> torch.Tensor:
            return row[place].unsqueeze(-1).expand_as(rows.weights)[counts]

        logit = logarithm + of_each(budget.answer.lse)
        return cls(
            weighted=weighted[counts],
            summed=(rows.weights * -against)[counts],
            below=of_each(budget.moments.p_peak).log() - logarithm,
            shift=of_each(budget.moments.peak) - logit,
            logit=logit,
            counted=counts,
        )

    @property
    def shifted(self) -> torch.Tensor:
        """The factor of an error of a logit."""
        return self.weighted + self.summed


@dataclass(frozen=True)
class _Source:
    """A rounding of at most `error`: the terms that it affects, and the places of the rounded numbers in the cells."""

    error: float
    cells: int
    place: Callable[[_Terms], torch.Tensor]
    terms: Callable[[_Terms], torch.Tensor]
    sawtooth: bool = True


def _sources(noise: NoiseModel, soft_cap: float) -> Iterator[_Source]:
    """Yield the coarse roundings of a kernel."""
    # The largest weight is exp(0), unless the model says that it is rounded too.
    exact = 0.0 if noise.peak else _EXACT

    def of_weights(roundoff: float, entered: Callable[[_Terms], torch.Tensor]) -> _Source:
        return _Source(
            roundoff,
            ceil(_LOWEST / (2 * roundoff)),
            lambda terms: terms.below / (2 * roundoff),
            lambda terms: entered(terms) * (terms.below >= exact),
        )

    if noise.probabilities > _FINE:
        yield of_weights(noise.probabilities, lambda terms: terms.weighted)
    if noise.row_sum > _FINE:
        yield of_weights(noise.row_sum, lambda terms: terms.summed)
    if noise.logits > _FINE:
        yield _of_logits(noise.logits / sqrt(UNIFORM), lambda terms: terms.logit)
    if noise.shifted > _FINE:
        yield _of_logits(noise.shifted, lambda terms: terms.shift)
    if soft_cap and noise.tanh > _FINE:
        yield _Source(
            noise.tanh,
            _CAP_CELLS,
            lambda terms: (terms.logit / soft_cap + 1) / 2 * _CAP_CELLS,
            lambda terms: terms.shifted * terms.logit,
            sawtooth=False,
        )


def _of_logits(roundoff: float, of: Callable[[_Terms], torch.Tensor]) -> _Source:
    """Return the rounding of logits, or distances of logits, in cells of their size, with separate negative ones."""
    half = ceil(log(_LARGEST_LOGIT / _SMALLEST_LOGIT) / (2 * roundoff))

    def place(terms: _Terms) -> torch.Tensor:
        size = of(terms).abs().clamp(min=_SMALLEST_LOGIT, max=_LARGEST_LOGIT)
        return (size / _SMALLEST_LOGIT).log() / (2 * roundoff) + half * (of(terms) < 0)

    return _Source(roundoff, 2 * half + 1, place, lambda terms: terms.shifted * of(terms))


class _Cells:
    """Sums of terms, by the cell and bin of the rounded number whose error each term has."""

    def __init__(self, cells: int, device: torch.device) -> None:
        self._sums, self._squares = torch.zeros(2, cells * _BINS, dtype=torch.float64, device=device)

    def add(self, place: torch.Tensor, terms: torch.Tensor) -> None:
        """Add `terms` at their places, which are in units of cells."""
        at = (place * _BINS).to(torch.int64).clamp_(0, len(self._sums) - 1)
        self._sums.index_add_(0, at, terms)
        self._squares.index_add_(0, at, terms * terms)

    def bound(self, deviations: float, *, sawtooth: bool) -> float:
        """Return a bound on the sum of all terms times errors of at most 1: a sawtooth, or one error per cell."""
        bins = self._sums.view(-1, _BINS)
        phases = bins @ SAWTOOTH.T.to(bins.device) if sawtooth else bins.sum(dim=-1, keepdim=True)
        sums = phases.abs().amax(dim=-1)
        chance = self._squares.view(-1, _BINS).sum(dim=-1).sqrt()
        return hoeffding((sums - CHANCE * chance).clamp_(min=0), deviations)
