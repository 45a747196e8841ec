"""Bounds on sums whose every addition is rounded to the same side.

An addition to a running sum s is rounded to a multiple of the step g of its result, 2 u times a power of two. As s is a
multiple of g already, the error depends on the term alone: it is the distance of the term t from the nearest multiple
of g, a sawtooth in t, at most u |s|, and at most |t| (Higham, 2002, sections 2.1 and 4.2). Terms that differ by whole
steps, and in particular equal ones, lose the same part each time, and their errors add up, whereas those of other terms
cancel like coin flips (the model of Higham and Mary, 2019).

So the terms p v of an element are sorted by the step of their partial sum and by their size in such steps: into cells
as wide as a step, and within these into bins. A kernel multiplies all terms by a factor, exp of the largest logit minus
one that it chose, so the phase of the sawtooth is unknown: a cell adds at most the sum over its bins of sawtooth times
bin, at the worst phase. A bin sums up the largest errors of its additions, with the sign of the term: runs of equal and
opposite terms lose opposite parts. Terms that are spread evenly over a cell add almost nothing, and the part that
chance leaves is subtracted: it is counted in the errors of independent additions. Cells are independent, so their sum
obeys Hoeffding's inequality.

Errors of independent additions also grow with the partial sums. Bounds assume these to be as large as the output or
sqrt(sum p^2 v^2). Terms of one sign that are followed by terms of the other make them larger.

Partial sums are in key order, from the first key or from the last, whichever is larger. Kernels with a sum for each
thread, tile or part have smaller ones.
"""

import torch

from attnfuzz.harness.judge.recurring import CHANCE, SAWTOOTH, hoeffding

_BINS = len(SAWTOOTH)

_FACTORS = 1.0, 2.0**0.5
"""Factors of a kernel's weights. Steps are powers of two, so factors only matter up to a power of two."""

_MOST_STEPS = 1 << 40
"""Steps of a sum beyond which the sizes of terms count as equal: their sum has no more than about 2^25."""

_TINY = 1e-300


def one_sided_error(terms: torch.Tensor, start: float, step: float, deviations: float) -> float:
    """Return a bound on the error that additions of `terms`, fp64 [n], share, except with `deviations` (by chance).

    The terms are added to `start`, or `start` to their sum; `step` is the unit roundoff of the sum.
    """
    terms = terms[terms != 0]
    if not len(terms):
        return 0.0
    return common_error(terms, partial_sums(terms, start), terms.sign(), step, deviations)


def common_error(
    terms: torch.Tensor, sums: torch.Tensor, factors: torch.Tensor, step: float, deviations: float
) -> float:
    """Return the bound for additions to any sums, each error times one of `factors`; all fp64 [n], no term is 0."""
    largest = _largest(terms, sums, step) * factors
    return max(_common(terms * factor, sums * factor, largest, step, deviations) for factor in _FACTORS)


def partial_sums(terms: torch.Tensor, start: float = 0.0) -> torch.Tensor:
    """Return the larger partial sum around each of `terms` [n], from the first or from the last: sizes, fp64 [n]."""
    forth = terms.cumsum(0)
    back = forth[-1] - forth + terms
    return (forth + start).abs().maximum((back + start).abs())


def independent_sums(terms: torch.Tensor, step: float) -> float:
    """Return the norm of the largest errors of the additions in units of `step`: at most that of the partial sums."""
    if not len(terms):
        return 0.0
    return float(_largest(terms, partial_sums(terms), step).norm()) / step


def _largest(terms: torch.Tensor, sums: torch.Tensor, step: float) -> torch.Tensor:
    return (step * sums).minimum(terms.abs())


def _common(terms: torch.Tensor, sums: torch.Tensor, largest: torch.Tensor, step: float, deviations: float) -> float:
    """Return the bound for one factor of a kernel's weights, from the `largest` effect of each addition's error."""
    level = sums.clamp(min=_TINY).log2().floor()
    place = (terms.abs() / (2 * step * level.exp2())).clamp_(max=_MOST_STEPS)
    # One number for both: sorting pairs takes ten times as long.
    number = (level - level.amin()).to(torch.int64) * (_MOST_STEPS + 1) + place.to(torch.int64)
    cell = torch.unique(number, return_inverse=True)[1]
    at = cell * _BINS + ((place % 1) * _BINS).to(torch.int64)
    count = int(cell.max()) + 1
    bins = torch.zeros(count * _BINS, dtype=torch.float64, device=terms.device).index_add_(0, at, largest)
    squares = torch.zeros(count, dtype=torch.float64, device=terms.device).index_add_(0, cell, largest * largest)
    sides = (bins.view(-1, _BINS) @ SAWTOOTH.T.to(terms.device)).abs().amax(dim=-1)
    excess = (sides * sides - CHANCE**2 * squares).clamp_(min=0).sqrt()
    return hoeffding(excess, deviations)
