"""Additions that are rounded to the same side in every row.

T3 assumes that the errors of different rows are coin flips. They are not if sums have terms of the same size in all
rows: each row loses the same part of them (`one_sided`), so a thousand keys of nearly equal weight after a heavy one
make all LSEs too small, or all too large.

The additions of a sample of rows and elements are sorted into the cells of `one_sided` together, each times its effect
on T3's sum. A kernel's weights are assumed to be relative to the row's largest one, and to the sink; their steps are
then the same in rows that are alike. Errors of different cells are independent, and terms that are spread over a cell
add almost nothing, as in a single row.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.one_sided import common_error, partial_sums
from attnfuzz.harness.judge.recurring import Statistic, remembered_error
from attnfuzz.reference.row import row_weights

_MOST_ROWS, _MOST_ELEMENTS = 64, 16
"""Number of rows of a sample, and of elements of each."""

_MOST_TERMS = 1 << 22
"""Number of terms of a sample: a few seconds where rows have 65,536 keys, less elsewhere."""

_FEWEST_ROWS = 16


class _Additions(NamedTuple):
    """Additions to sums of one row, fp64 [n]: their terms, the larger partial sum next to each, and its factor.

    The factor is the effect on T3's sum of an error of the sum by 1, with the sign of the term.
    """

    terms: torch.Tensor
    sums: torch.Tensor
    factors: torch.Tensor


def recurring_sums_error(budget: ErrorBudget, statistic: Statistic, deviations: float) -> float:
    """Return the maximum that additions rounded to one side add to a statistic, up to `deviations` of chance.

    It is cached like `recurring_error`.
    """
    return remembered_error("recurring sums", _recurring_sums_error, budget, statistic, deviations)


def _recurring_sums_error(budget: ErrorBudget, statistic: Statistic, deviations: float) -> float:
    counted = (statistic.against != 0).nonzero()
    if not len(counted):
        return 0.0
    most = _MOST_TERMS // int(budget.keys.max())
    rows = counted[_evenly(len(counted), min(max(most // 2, _FEWEST_ROWS), _MOST_ROWS))]
    elements = _evenly(budget.answer.out.shape[2], min(max(most // len(rows) - 1, 1), _MOST_ELEMENTS))
    additions = [each for token, head in rows.tolist() for each in _additions(budget, statistic, token, head, elements)]
    terms, sums, factors = (torch.cat(each) for each in zip(*additions, strict=True))
    return len(counted) / len(rows) * common_error(terms, sums, factors, budget.step, deviations)


def _evenly(count: int, most: int) -> torch.Tensor:
    """Return up to `most` indices below `count`, evenly spaced, int64."""
    return torch.linspace(0, count - 1, min(count, most)).round().to(torch.int64)


def _additions(
    budget: ErrorBudget, statistic: Statistic, token: int, head: int, elements: torch.Tensor
) -> Iterator[_Additions]:
    """Yield the additions of one row to the denominator, and to the products of some `elements`."""
    weights, values = row_weights(budget.problem, token, head)
    # The kernel's weights, and the errors of their sums, are in units of the largest weight.
    unit = budget.moments.p_peak[token, head].item()
    weights = weights / unit
    sink = max(1 / unit - float(weights.sum()), 0.0)
    yield _of_sum(weights, sink, -unit * statistic.against[token, head].item())
    if statistic.direction is None:
        return
    direction = statistic.direction[token, head, elements] * (unit * len(values.T) / len(elements))
    for column, factor in zip(values[:, elements].T, direction.tolist(), strict=True):
        yield _of_sum(weights * column, 0.0, factor)


def _of_sum(terms: torch.Tensor, start: float, factor: float) -> _Additions:
    terms = terms[terms != 0]
    sums = partial_sums(terms, start) if len(terms) else terms
    return _Additions(terms, sums, factor * terms.sign())
