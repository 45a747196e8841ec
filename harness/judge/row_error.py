"""T2: a bound on the mean square error of every row, which sees what is too small and too widespread for T1."""

from dataclasses import dataclass
from math import log, sqrt

import torch

from attnfuzz.harness.judge.error_budget import UNIFORM, ErrorBudget
from attnfuzz.reference.row import row_weights


@dataclass(frozen=True)
class RowError:
    """The rows that fail, most suspicious first, as (token, head, margin); `margin` is the largest of all rows."""

    wrong: tuple[tuple[int, int, float], ...]
    margin: float


def row_error(budget: ErrorBudget, error: torch.Tensor) -> RowError:
    """Judge rows by z^2 = mean_d(error^2 / variance), for `error` [T, Hq, Dv] of fp64, 0 where there is no verdict.

    The errors of a row's elements are correlated, so z^2 is a mixture of chi-squares whose weights are the eigenvalues
    of the errors' correlation matrix C. It stays below 1 + (2 |C|_F sqrt(x) + 2 |C|_2 x) / Dv with probability
    1 - exp(-x) (Laurent and Massart, 2000, lemma 1). Independent elements have the lowest threshold: rows above
    that are given their own.
    """
    if not error.numel():
        return RowError((), 0.0)
    tokens, heads, dim = error.shape
    z2 = (error * error / _variance(budget)).mean(dim=-1)
    x = log(tokens * heads / budget.alpha)
    screen = 1 + 2 * sqrt(x / dim) + 2 * x / dim
    largest = z2.max().item()
    if largest <= screen:
        return RowError((), largest / screen)
    order = z2.flatten().argsort(descending=True).tolist()
    scores = z2.flatten().tolist()
    margin = 0.0
    for rank, row in enumerate(order):
        if scores[row] <= screen:
            return RowError((), max(margin, scores[row] / screen))
        threshold = _threshold(budget, row // heads, row % heads, x)
        margin = max(margin, scores[row] / threshold)
        if scores[row] > threshold:
            wrong = [row for row in order[rank:] if scores[row] > threshold]
            return RowError(tuple((row // heads, row % heads, scores[row] / threshold) for row in wrong), margin)
    return RowError((), margin)


def _variance(budget: ErrorBudget) -> torch.Tensor:
    """The mean square error of a correct kernel, [T, Hq, Dv]: an upper estimate, so that z^2 averages below 1."""
    moments = budget.moments
    variance = _independent(budget)
    variance += moments.power * (UNIFORM * budget.noise.probabilities**2)
    variance += moments.spread * budget.row_logit_variance.unsqueeze(-1)
    variance += budget.answer.out**2 * _shared(budget).unsqueeze(-1)
    return variance


def _shared(budget: ErrorBudget) -> torch.Tensor:
    """Mean square of the relative error that all elements of a row have in common, [T, Hq]."""
    return budget.row_shared_error**2 + budget.noise.accumulate**2 * budget.keys


def _independent(budget: ErrorBudget) -> torch.Tensor:
    """Mean square of the errors that each element has for itself, [T, Hq, Dv]: fp32 sums and output roundings.

    The rounding that the exact answer suffers is known, and used where it is larger than the average: equal elements
    round alike, as those of a count do.
    """
    out = budget.answer.out
    squared = out * out
    usual = UNIFORM * budget.roundoff**2
    rounding = out.to(budget.out_dtype).to(torch.float64).sub_(out)
    variance = torch.maximum(rounding.mul_(rounding), squared * usual).mul_(budget.roundings)
    if budget.roundings > 1:
        variance += (budget.moments.power + squared) * (2 * usual * (budget.roundings - 1))
    variance += budget.moments.power * (budget.noise.accumulate**2 * budget.keys).unsqueeze(-1)
    return variance.add_(budget.floor**2)


def _threshold(budget: ErrorBudget, token: int, head: int, x: float) -> float:
    """The threshold of one row, from the eigenvalues of its errors' correlation matrix."""
    weights, values = row_weights(budget.problem, token, head)
    out = budget.answer.out[token, head]
    rounded = weights.unsqueeze(-1) * values
    shifted = weights.unsqueeze(-1) * (values - out)
    covariance = rounded.T @ rounded * (UNIFORM * budget.noise.probabilities**2)
    covariance += shifted.T @ shifted * budget.row_logit_variance[token, head]
    covariance += torch.outer(out, out) * _shared(budget)[token, head]
    covariance += torch.diag(_independent(budget)[token, head])
    deviation = covariance.diagonal().sqrt()
    eigenvalues = torch.linalg.eigvalsh(covariance / torch.outer(deviation, deviation))
    spread = eigenvalues.norm().item() * sqrt(x) + eigenvalues[-1].item() * x
    return float(1 + 2 * spread / out.shape[0])
