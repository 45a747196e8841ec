"""T2: a bound on the mean square error of every row, which detects errors too small and widespread for T1."""

from dataclasses import dataclass
from functools import partial
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
    rounded_by_runs,
    row_of,
    sums_deviations,
)
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.reference.row import key_marks


@dataclass(frozen=True)
class RowError:
    """The failing rows, most suspicious first, as (token, head, margin); `margin` is the largest one."""

    wrong: tuple[tuple[int, int, float], ...]
    margin: float


def judge_rows(evidence: Evidence) -> TierResult:
    """Return T2's verdict; the margin is that of z^2."""
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
    """Judge rows by z^2 = mean_d(error^2 / variance), for `error` [T, Hq, Dv] in fp64, 0 where not judged.

    The errors of a row's elements are correlated, so z^2 is a mixture of chi-squares whose weights are the eigenvalues
    of the errors' correlation matrix C. It stays below 1 + (2 |C|_F sqrt(x) + 2 |C|_2 x) / Dv with probability 1 -
    exp(-x) (Laurent and Massart, 2000, lemma 1). Independent elements have the lowest threshold: rows above it get
    their own threshold, at most `MOST_ROWS_AGAIN` of them.
    """
    if not error.numel():
        return RowError((), 0.0)
    tokens, heads, dim = error.shape
    z2 = (error * error / budget.variance).mean(dim=-1)
    x = log(tokens * heads / budget.alpha)
    screen = threshold(sqrt(dim), 1.0, x, dim)
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
            allowed = scores[row] / own
            wrong = [row for row in order[rank:] if scores[row] > allowed]
            return RowError(tuple((row // heads, row % heads, scores[row] / allowed) for row in wrong), margin)
    return RowError((), margin)


def _own_margin(budget: ErrorBudget, error: torch.Tensor, token: int, head: int, x: float) -> float:
    """Return z^2 of one row over its own threshold, with ties and parts; with errors of sums only if it fails without.

    Errors of sums require sorting all keys for each element. Most rows above the first threshold pass without them, and
    many with their own variance alone.
    """
    squares = error[token, head].square()
    margin = _margin(budget, squares, token, head, x, sums=False)
    return margin if margin <= 1 else _margin(budget, squares, token, head, x, sums=True)


def _margin(budget: ErrorBudget, squares: torch.Tensor, token: int, head: int, x: float, *, sums: bool) -> float:
    """Return the margin from the `squares` [Dv] of the row's errors, with or without errors of sums."""
    name, dim = "T2 with sums" if sums else "T2", len(squares)
    own = partial(OwnErrors.of, budget, token, head, sums=sums)
    variance = once(budget, f"{name}: variance", token, head, lambda: own().variance())
    z2: float = (squares / variance).mean().item()
    margin = z2 / threshold(sqrt(dim), 1.0, x, dim)
    if margin <= 1:
        return margin
    norm, largest = once(budget, f"{name}: correlation", token, head, lambda: own().correlation())
    return z2 / threshold(norm, largest, x, dim)


@dataclass(frozen=True)
class OwnErrors:
    """The errors of one row's elements: sums of `shared` [n, Dv] with random signs, and independent ones.

    `independent` [Dv] are mean squares.
    """

    shared: torch.Tensor
    independent: torch.Tensor

    @classmethod
    def of(cls, budget: ErrorBudget, token: int, head: int, *, sums: bool) -> "OwnErrors":
        """Return the errors from the row's ties, parts and logits, and with `sums` from `sums_deviations`."""
        weights, values = row_of(budget, token, head)
        marks, by_runs = key_marks(budget.problem, token, head), rounded_by_runs(budget, token, head)
        ties = Ties.of(weights, values, marks, nearness(budget), by_runs=by_runs)
        out = budget.answer.out[token, head]
        shared = [
            ties.alike.weighted * (sqrt(UNIFORM) * budget.noise.probabilities),
            ties.copies.apart(out) * budget.row_logit_variance[token, head].sqrt(),
            (out * budget.row_shared_variance[token, head].sqrt()).unsqueeze(0),
            parts_error(budget, token, head).unsqueeze(0),
            common_logits_error(budget, token, head).unsqueeze(0),
        ]
        independent = budget.independent_variance[token, head]
        if budget.noise.operands:
            power = equal_values(budget, token, head).square().sum(dim=0)
            independent = independent + power * (UNIFORM * budget.noise.operands**2)
        if sums:
            summed, apart = sums_deviations(budget, token, head)
            shared.append(summed.unsqueeze(0))
            independent = independent + apart**2
        return cls(torch.cat(shared), independent)

    def variance(self) -> torch.Tensor:
        """Return the mean square of each element's error, [Dv]."""
        return self.shared.square().sum(dim=0) + self.independent

    def correlation(self) -> tuple[float, float]:
        """Return norm and maximum of the eigenvalues of the errors' correlation matrix."""
        variance = self.variance()
        shared = self.shared / variance.sqrt()
        eigenvalues = torch.linalg.eigvalsh(shared.T @ shared + torch.diag(self.independent / variance))
        return eigenvalues.norm().item(), eigenvalues[-1].item()


def threshold(norm: float, largest: float, x: float, dim: int) -> float:
    """Return the bound on z^2 for eigenvalues of this norm and maximum. Independent elements have the lowest."""
    return 1 + 2 * (norm * sqrt(x) + largest * x) / dim
