"""T3: the error common to all rows, which detects a uniform error that is too small for any single row.

For a row r with error e and expected output o, x_r = sum_d e o / V, with V from `ErrorBudget.variance`, measures the
error of the output's scale, and sum_d e / V its shift; the LSE has its own error. Errors of a correct kernel are
equally likely to be positive or negative and independent between rows, so signs are coin flips: |sum x_r| exceeds
z sqrt(sum x_r^2) with probability at most 2 exp(-z^2 / 2), for any sizes (Hoeffding's inequality given the sizes;
Efron, 1969). This needs no calibrated noise level. Four sources are not coin flips:

- Rounding to the output's dtype, which is known for structured answers. An output stands for all values that round to
  it, and counts as the one nearest to the answer: the error shrinks by half a spacing, at most to zero.
- Rows with the same answer have the same error: heads of a group with q = 0, shared prefixes, constant values. They
  count as one.
- Errors that a row may share with others: NoiseModel.bias, a fast exponential, fp32 roundings of exponents, weights
  that round alike, largest weights that are not exp(0) (NoiseModel.peak: if they are exp(-c), they round alike in every
  row), small weights that are lost, and roundings before a merge, where a small part is lost to a large one in row
  after row. Let c_r be the maximum that these contribute to x_r. The noise is then at most |x_r| + c_r and its sum at
  least |sum x_r| - sum c_r, so t = (|sum x_r| - sum c_r) / sqrt(sum (|x_r| + c_r)^2) obeys the inequality. Rows that
  may share more than their own noise are left out: T1 and T2 detect their errors.
- Recurring roundings, as of equal weights (`recurring`) or of additions (`recurring_sums`). They are computed only if
  the score is too large.

Each x_r is divided by its standard deviation, so that no row outweighs the others. t is at most sqrt(rows): with fewer
than about 50 rows the tier cannot fail.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from math import log, sqrt
from typing import NamedTuple

import torch

from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.evidence import Evidence, TierResult
from attnfuzz.harness.judge.judged_again import grouped
from attnfuzz.harness.judge.lse_bound import independent_lse_error, shared_lse_error
from attnfuzz.harness.judge.recurring import Statistic, recurring_error
from attnfuzz.harness.judge.recurring_sums import recurring_sums_error
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.reference.noise import SMALLEST_STEP

_STATISTICS = 3
"""Scale, shift and LSE."""

_SAME = 1e-9
"""Relative difference below which two rows have the same answer. Merging rows by mistake only costs power."""

_TINY = 1e-150
"""Replaces a standard deviation or a precision of 0, whose numerator is 0 too."""

_EXPONENT = 0x7FF << 52
"""The exponent bits of an fp64 number: its power of two."""


@dataclass(frozen=True)
class Signs:
    """A common error: x_r and c_r >= 0 in fp64, both [rows].

    `answers` returns int64 [rows], equal for rows with the same answer. `statistic` returns the sum of x_r as a
    function of the errors of weights.
    """

    off: torch.Tensor
    shared: torch.Tensor
    answers: Callable[[], torch.Tensor]
    statistic: Callable[[], Statistic]

    @cached_property
    def score(self) -> float:
        """The statistic t, or 0 if shared errors explain its sum. P(t >= z) <= 2 exp(-z^2 / 2)."""
        return self.score_beyond(0.0)

    def score_beyond(self, recurring: float) -> float:
        """Return the score if recurring errors add up to `recurring`."""
        excess = abs(self.off.sum().item()) - self.shared.sum().item() - recurring
        if excess <= 0:
            return 0.0
        answers = self.answers()
        off, shared = (torch.zeros_like(each).index_add_(0, answers, each) for each in (self.off, self.shared))
        return excess / float(off.abs_().add_(shared).norm())

    def recurring(self, budget: ErrorBudget) -> float:
        """Return the sum that recurring roundings may add up to, whatever the errors."""
        allowed = allowed_score(budget)
        return sum(error(budget, self.statistic(), allowed) for error in (recurring_error, recurring_sums_error))

    def margin(self, budget: ErrorBudget) -> float:
        """Return the score over the allowed one. Recurring errors are only computed if it exceeds 1 without them."""
        allowed = allowed_score(budget)
        score, recurring = self.score, 0.0
        for error in (recurring_error, recurring_sums_error):
            if score > allowed:
                recurring += error(budget, self.statistic(), allowed)
                score = self.score_beyond(recurring)
        return score / allowed


class CommonErrors(NamedTuple):
    """Scale and shift common to the usable rows `telling`, bool [T, Hq]."""

    scale: Signs
    shift: Signs
    telling: torch.Tensor


def judge_common_error(evidence: Evidence) -> TierResult | None:
    """Return T3's verdict on the output, or None if too few rows are usable."""
    budget = evidence.budget
    if evidence.seeing_rows <= allowed_score(budget) ** 2:
        return None
    scale, shift, telling = common_errors(budget, evidence.error, evidence.sees)
    of_scale, of_shift = scale.margin(budget), shift.margin(budget)

    def words() -> str:
        if of_scale >= of_shift:
            by = estimate(evidence.error, budget.variance, budget.answer.out, telling)
            return f"out is {1 + by:.6g} times what it should be"
        return f"out is {estimate(evidence.error, budget.variance, torch.ones(()), telling):+.3g} off"

    return _result(evidence, scale.off.numel(), max(of_scale, of_shift), "out", words)


def judge_common_lse_error(evidence: Evidence) -> TierResult | None:
    """Return T3's verdict on the LSE, or None if there is none or too few rows are usable."""
    if evidence.lse is None or evidence.seeing_rows <= allowed_score(evidence.budget) ** 2:
        return None
    error = evidence.own_lse_error
    signs, telling = common_lse_errors(evidence.budget, error, evidence.comparable)

    def words() -> str:
        variance = independent_lse_error(evidence.budget) ** 2
        off = estimate(error, variance, torch.ones(()), telling) / evidence.lse_unit
        return f"lse is {off:+.3g} off (base {evidence.contract.lse})"

    return _result(evidence, signs.off.numel(), signs.margin(evidence.budget), "lse", words)


def _result(evidence: Evidence, rows: int, margin: float, place: str, words: Callable[[], str]) -> TierResult | None:
    allowed = allowed_score(evidence.budget)
    if rows <= allowed**2:
        return None
    if margin <= 1:
        return TierResult(margin)
    message = (
        f"over {rows} rows, {words()}, which no single row shows: {margin * allowed:.3g} standard deviations, "
        f"{margin:.3g} times the allowed"
    )
    return evidence.failed(Tier.T3, place, margin, message)


def allowed_score(budget: ErrorBudget) -> float:
    """Return the score that chance exceeds, in any of the statistics, with probability at most `budget.alpha`."""
    return sqrt(2 * log(2 * _STATISTICS / budget.alpha))


def common_errors(budget: ErrorBudget, error: torch.Tensor, sees: torch.Tensor) -> CommonErrors:
    """Return scale and shift of the tokens in `sees` [T], from `error` [T, Hq, Dv]."""
    out, noise = budget.answer.out, budget.noise
    precision = budget.variance.reciprocal()
    scaled = out * precision
    # The shared errors consist of sums of |o|^n / V for n = 0, 1, 2, row by row.
    precisions, sizes, squares = precision.sum(dim=-1), scaled.abs().sum(dim=-1), (scaled * out).sum(dim=-1)
    own = budget.row_shared_error + (budget.parts - 1) * budget.roundoff
    own = own + noise.peak * budget.moments.p_peak
    telling = sees.unsqueeze(-1) & (own * squares.sqrt() <= 1)
    share = own + noise.exponential + noise.bias
    whole = bool(telling.all())

    def rows_of(each: torch.Tensor) -> torch.Tensor:
        return each.flatten() if whole else each[telling]

    @cache
    def answers() -> torch.Tensor:
        return same_answers(rows_of(squares))

    excess = _beyond_rounding(budget, error)

    def signs(weights: torch.Tensor, variance: torch.Tensor, shared: torch.Tensor) -> Signs:
        deviation = variance.sqrt().clamp_(min=_TINY)
        off = (excess * weights).sum(dim=-1)

        def statistic() -> Statistic:
            direction = weights * (telling / deviation).unsqueeze(-1)
            return Statistic(direction, (direction * out).sum(dim=-1))

        return Signs(rows_of(off / deviation), rows_of(shared / deviation), answers, statistic)

    return CommonErrors(
        scale=signs(scaled, squares, share * squares + budget.row_flushed * sizes),
        shift=signs(precision, precisions, share * sizes + budget.row_flushed * precisions),
        telling=telling,
    )


def common_lse_errors(budget: ErrorBudget, error: torch.Tensor, comparable: torch.Tensor) -> tuple[Signs, torch.Tensor]:
    """Return LSE errors of the `comparable` rows, from `error` in natural units, and the rows used, both [T, Hq]."""
    deviation, shared = independent_lse_error(budget), shared_lse_error(budget)
    telling = comparable & (shared <= deviation)
    off, size = error[telling], deviation[telling]

    def statistic() -> Statistic:
        return Statistic(None, telling / -deviation)

    def answers() -> torch.Tensor:
        return same_answers(budget.answer.lse[telling])

    return Signs(off / size, (shared[telling] + budget.noise.bias) / size, answers, statistic), telling


def estimate(error: torch.Tensor, variance: torch.Tensor, size: torch.Tensor, telling: torch.Tensor) -> float:
    """Return the common error in multiples of `size`, weighted by precision, rounding included.

    `error` and `variance` are [T, Hq, ...], `size` broadcasts to them, `telling` is [T, Hq].
    """
    weights = size / variance
    common, precision = ((each * weights)[telling].sum() for each in (error, size))
    return (common / precision.clamp(min=_TINY)).item()


def same_answers(answers: torch.Tensor) -> torch.Tensor:
    """Return a number for each of `answers` [rows], the same for equal answers up to rounding: int64 [rows]."""
    return grouped(answers, _SAME * answers.abs())


def _beyond_rounding(budget: ErrorBudget, error: torch.Tensor) -> torch.Tensor:
    """Return the error [T, Hq, Dv] of the value nearest to the answer that rounds to the output."""
    # Above a power of two, values are spaced by twice that power times the roundoff.
    half = budget.answer.out.view(torch.int64).bitwise_and(_EXPONENT).view(torch.float64).mul_(budget.roundoff)
    half.clamp_(min=SMALLEST_STEP[budget.out_dtype])
    return error - error.clamp(-half, half)
