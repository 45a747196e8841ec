"""T2: a bound on the mean square error of every row, which sees errors too small and widespread for T1."""

from dataclasses import dataclass
from math import log, sqrt

import torch

from attnfuzz.harness.judge.error_budget import UNIFORM, ErrorBudget
from attnfuzz.harness.judge.evidence import Evidence, TierResult
from attnfuzz.harness.judge.judged_again import (
    MOST_ROWS_AGAIN,
    Ties,
    common_logits_error,
    equal_values,
    nearness,
    once,
    parts_error,
    row_of,
    sums_deviations,
)
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.reference.row import key_marks


@dataclass(frozen=True)
class RowError:
    """The rows that fail, most suspicious first, as (token, head, margin); `margin` is the largest one."""

    wrong: tuple[tuple[int, int, float], ...]
    margin: float


def judge_rows(evidence: Evidence) -> TierResult:
    """T2's verdict; the margin is that of z^2."""
    found = row_error(evidence.budget, evidence.error)
    if not found.wrong:
        return TierResult(found.margin)
    token, head, margin = found.wrong[0]
    rms = evidence.error[token, head].square().mean().sqrt().item()
    size = evidence.budget.answer.out[token, head].square().mean().sqrt().item()
    message = (
        f"{evidence.name((token, head))}: root mean square error {rms:.3g} of an output of {size:.3g}, its "
        f"square {margin:.3g} times the allowed one; {evidence.share(len(found.wrong))}"
    )
    return evidence.failed(Tier.T2, "out", margin, message, (token, head))._replace(margin=found.margin)


def row_error(budget: ErrorBudget, error: torch.Tensor) -> RowError:
    """Judge rows by z^2 = mean_d(error^2 / variance), for `error` [T, Hq, Dv] of fp64, 0 where not judged.

    The errors of a row's elements are correlated, so z^2 is a mixture of chi-squares whose weights are the eigenvalues
    of the errors' correlation matrix C. It stays below 1 + (2 |C|_F sqrt(x) + 2 |C|_2 x) / Dv with probability
    1 - exp(-x) (Laurent and Massart, 2000, lemma 1). Independent elements have the lowest threshold: rows above it get
    their own threshold, at most `MOST_ROWS_AGAIN` of them.
    """
    if not error.numel():
        return RowError((), 0.0)
    tokens, heads, dim = error.shape
    z2 = (error * error / budget.variance).mean(dim=-1)
    x = log(tokens * heads / budget.alpha)
    screen = 1 + 2 * sqrt(x / dim) + 2 * x / dim
    largest = z2.max().item()
    if largest <= screen:
        return RowError((), largest / screen)
    order = z2.flatten().argsort(descending=True).tolist()
    scores = z2.flatten().tolist()
    margin = 0.0
    for rank, row in enumerate(order[:MOST_ROWS_AGAIN]):
        if scores[row] <= screen:
            return RowError((), max(margin, scores[row] / screen))
        own = _own_margin(budget, error, row // heads, row % heads, x)
        margin = max(margin, own)
        if own > 1:
            threshold = scores[row] / own
            wrong = [row for row in order[rank:] if scores[row] > threshold]
            return RowError(tuple((row // heads, row % heads, scores[row] / threshold) for row in wrong), margin)
    return RowError((), margin)


def _own_margin(budget: ErrorBudget, error: torch.Tensor, token: int, head: int, x: float) -> float:
    """z^2 of one row over its own threshold, ties and parts included."""
    variance, length, largest = once(budget, "T2", token, head, lambda: _own_variance(budget, token, head))
    z2 = (error[token, head].square() / variance).mean().item()
    return float(z2 / (1 + 2 * (length * sqrt(x) + largest * x) / error.shape[2]))


def _own_variance(budget: ErrorBudget, token: int, head: int) -> tuple[torch.Tensor, float, float]:
    """Mean square errors [Dv] of one row, and norm and maximum of the eigenvalues of their correlation matrix."""
    weights, values = row_of(budget, token, head)
    ties = Ties.of(weights, values, key_marks(budget.problem, token, head), nearness(budget))
    out = budget.answer.out[token, head]
    summed, independent = sums_deviations(budget, token, head)
    parts = parts_error(budget, token, head)
    covariance = ties.alike.weighted.T @ ties.alike.weighted * (UNIFORM * budget.noise.probabilities**2)
    covariance += ties.copies.covariance(out) * budget.row_logit_variance[token, head]
    covariance += torch.outer(out, out) * budget.row_shared_variance[token, head]
    logits = common_logits_error(budget, token, head)
    for shared in (summed, parts, logits):
        covariance += torch.outer(shared, shared)
    covariance += torch.diag(budget.independent_variance[token, head] + independent**2)
    if budget.noise.operands:
        power = equal_values(budget, token, head).square().sum(dim=0)
        covariance += torch.diag(power * (UNIFORM * budget.noise.operands**2))
    variance = covariance.diagonal()
    deviation = variance.sqrt()
    eigenvalues = torch.linalg.eigvalsh(covariance / torch.outer(deviation, deviation))
    return variance, eigenvalues.norm().item(), eigenvalues[-1].item()
