"""The limits of a correct kernel's error in a script: those of the tier that failed, as numbers.

They follow from the calls' inputs, the kernel's noise model and the judge's alpha alone, so a script has them as data
beside the answer that it computes itself. Rows are judged again like the judge does (`judged_again`): the reported row
with everything that the judge allows, the others without the errors of their sums, if there are few of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from math import inf, log, sqrt

import torch

from attnfuzz.harness.calls.literal_calls import answer_of, answered_geometry
from attnfuzz.harness.judge import common_error, exact_weights, lse_bound, row_error
from attnfuzz.harness.judge.element_bound import element_bound
from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.evidence import RealRows
from attnfuzz.harness.judge.judge import alpha_of_tier, budget_of
from attnfuzz.harness.judge.judged_again import (
    MOST_ROWS_AGAIN,
    element_allowance,
    lse_ties_allowance,
    sums_allowance,
)
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.tiers import ALPHA, Tier
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.contract import Holds, LseBase


class LimitForm(StrEnum):
    """The ways to compare results with their limits."""

    EXACT = "exact"
    BOUND = "bound"
    MEAN_SQUARE = "mean_square"
    COMMON = "common"


@dataclass(frozen=True)
class CommonError:
    """One common error of T3: "scale", "shift" or "lse", with the rows' own `shared` errors, NaN in rows left out.

    `recurring` is the sum that recurring roundings explain; `groups` [rows used] numbers rows with the same answer.
    """

    name: str
    shared: torch.Tensor
    recurring: float
    groups: torch.Tensor


@dataclass(frozen=True)
class ScriptLimits:
    """The comparison of a script at `place`, "out" or "lse": fp64 [T, Hq, Dv], or [T, Hq] for the LSE, of all requests.

    `numbers` are bounds (`BOUND`), or deviations of a correct kernel (`MEAN_SQUARE`, `COMMON`). `allowed` [T, Hq] are
    the largest mean squares in deviations, `most` is the largest score of a common error.
    """

    form: LimitForm
    place: str
    numbers: torch.Tensor | None = None
    allowed: torch.Tensor | None = None
    most: float = inf
    statistics: tuple[CommonError, ...] = ()


def limits_of(
    calls: CallCase, backend: Backend, seen: Observation | None, *, alpha: float = ALPHA
) -> tuple[ScriptLimits, ...]:
    """Return the limits of the tier of the failure `seen`, or of T1 and T4 if it has none.

    `calls` must have an answer.
    """
    tier, place = ("", "") if seen is None else (seen.tier, seen.place)
    if tier == Tier.T0:
        return (ScriptLimits(LimitForm.EXACT, place),)
    found = Bounds(calls, backend, seen, alpha)
    if tier == Tier.T2:
        return (found.mean_squares(),)
    if tier == Tier.T3:
        return (found.common_lse() if place == "lse" else found.common(),)
    if tier in {Tier.T1, Tier.T4, Tier.T5, Tier.T6}:
        return (found.bound(Tier(tier), place),)
    has_lse = calls.answer is not None and calls.answer.lse is not None and backend.contract.lse is not None
    return (found.bound(Tier.T1, "out"), *([found.bound(Tier.T4, "lse")] if has_lse else []))


class Bounds:
    """The limits of an output's rows, for a failure `seen` in calls with an answer."""

    def __init__(self, calls: CallCase, backend: Backend, seen: Observation | None, alpha: float) -> None:
        output, geometry = answer_of(calls), answered_geometry(calls)
        rows = RealRows(output.attended, output.out.shape[0], output.out.device)
        judged = budget_of(output, rows, geometry, backend.noise(geometry.dtype), alpha_of_tier(alpha))
        self._budget: ErrorBudget = judged.budget
        self._empty_rows = backend.contract.empty_rows
        self._unit = log(2.0) if backend.contract.lse is LseBase.TWO else 1.0
        # Tokens of requests without a right answer are not among the budget's.
        self._answered = torch.tensor(
            [at not in judged.lost for at, q_len in enumerate(rows.q_lens) for _ in range(q_len)], dtype=torch.bool
        )
        self._lost, self._q_lens, self._seen = judged.lost, rows.q_lens, seen

    @cached_property
    def _reported(self) -> tuple[int, int] | None:
        """Token and head of the reported row."""
        row = None if self._seen is None else self._seen.row
        if row is None or row.request in self._lost or row.request >= len(self._q_lens):
            return None
        before = sum(n for at, n in enumerate(self._q_lens[: row.request]) if at not in self._lost)
        return before + row.token, row.head

    def _again(self) -> Iterator[tuple[int, int]]:
        """Yield the rows to judge again: the reported one, and the others if they are few."""
        tokens, heads = self._budget.moments.gap.shape
        if tokens * heads <= MOST_ROWS_AGAIN:
            yield from ((token, head) for token in range(tokens) for head in range(heads))
        elif self._reported is not None:
            yield self._reported

    def bound(self, tier: Tier, place: str) -> ScriptLimits:
        """Return the bounds of T1 or T5 for the output, of T4 or T5 for the LSE; no error is too large for others."""
        if place == "lse":
            found = self._lse_bound(tier) / self._unit
        else:
            found = self._exact_bound() if tier is Tier.T5 else self._element_bound()
        return ScriptLimits(LimitForm.BOUND, place, self._with_lost(found))

    def apart(self, place: str, roundings: int, *, bitwise: bool) -> torch.Tensor:
        """Return the largest difference of two correct runs, 0 if `bitwise`. The second has more `roundings`."""
        bound = self._lse_bound(Tier.T4) / self._unit if place == "lse" else self._element_bound()
        other = bound
        if roundings != self._budget.roundings:
            own, self._budget = self._budget, replace(self._budget, roundings=roundings)
            other = self._lse_bound(Tier.T4) / self._unit if place == "lse" else self._element_bound()
            self._budget = own
        compared = self._sees | (self._empty_rows is Holds.ZERO)
        apart = torch.zeros_like(bound) if bitwise else bound + other
        return self._with_lost(apart.masked_fill(~compared.view(-1, *[1] * (bound.dim() - 1)), inf))

    def _element_bound(self) -> torch.Tensor:
        budget, bound = self._budget, element_bound(self._budget).clone()
        for token, head in self._again():
            bound[token, head] += element_allowance(budget, token, head)
        self._add_sums(bound)
        return bound.masked_fill_(~self._sees.view(-1, 1, 1), inf)

    def _exact_bound(self) -> torch.Tensor:
        budget = self._budget
        exact = budget.exact_weights & self._sees.unsqueeze(-1)
        rows = exact.flatten().nonzero().squeeze(-1)
        bound = torch.full_like(budget.answer.out, inf)
        bound[exact] = exact_weights.exact_bound(budget, rows)
        for token, head in self._again():
            bound[token, head] += exact_weights.exact_allowance(budget, token, head)
        self._add_sums(bound)
        return bound

    def _add_sums(self, bound: torch.Tensor) -> None:
        if self._reported is not None:
            sums = [sums_allowance(self._budget, *self._reported, element) for element in range(bound.shape[-1])]
            bound[self._reported] += bound.new_tensor(sums)

    def _lse_bound(self, tier: Tier) -> torch.Tensor:
        budget = self._budget
        if tier is Tier.T5:
            zero = exact_weights.zero_logits(budget) & self._sees.unsqueeze(-1)
            return torch.where(zero, exact_weights.exact_lse_bound(budget), inf)
        bound = lse_bound.lse_bound(budget).clone()
        for token, head in self._again():
            bound[token, head] += lse_ties_allowance(budget, token, head)
        return torch.where(self._comparable, bound, inf)

    @cached_property
    def _sees(self) -> torch.Tensor:
        return self._budget.answer.visible > 0

    @property
    def _comparable(self) -> torch.Tensor:
        """The LSEs that are compared, bool [T, Hq]: rows without keys have one if the contract says so."""
        finite = self._budget.answer.lse.isfinite()
        return finite if self._empty_rows is Holds.ZERO else finite & self._sees.unsqueeze(-1)

    def mean_squares(self) -> ScriptLimits:
        """Return T2's deviations of every element, and the mean square that each row may have in units of these."""
        budget = self._budget
        variance = budget.variance.clone()
        tokens, heads, dim = variance.shape
        x = log(max(tokens * heads, 1) / budget.alpha)
        allowed = variance.new_full((tokens, heads), row_error.threshold(sqrt(dim), 1.0, x, dim))
        for token, head in self._again():
            own = row_error.OwnErrors.of(budget, token, head, sums=(token, head) == self._reported)
            variance[token, head], allowed[token, head] = (
                own.variance(),
                row_error.threshold(*own.correlation(), x, dim),
            )
        allowed.masked_fill_(~self._sees.unsqueeze(-1), inf)
        return ScriptLimits(LimitForm.MEAN_SQUARE, "out", self._with_lost(variance.sqrt()), self._with_lost(allowed))

    def common(self) -> ScriptLimits:
        """Return T3's for scale and shift of the output."""
        budget = self._budget
        # Only the errors depend on the output, and these are the script's.
        none = torch.zeros_like(budget.answer.out)
        scale, shift, telling = common_error.common_errors(budget, none, self._sees)
        statistics = [self._statistic(name, signs, telling) for name, signs in (("scale", scale), ("shift", shift))]
        return self._common("out", budget.variance.sqrt(), statistics)

    def common_lse(self) -> ScriptLimits:
        """Return T3's for the LSE, whose deviations are in the contract's unit."""
        budget = self._budget
        none = torch.zeros_like(budget.answer.lse)
        signs, telling = common_error.common_lse_errors(budget, none, self._comparable)
        deviation = lse_bound.independent_lse_error(budget) / self._unit
        return self._common("lse", deviation, [self._statistic("lse", signs, telling)])

    def _common(self, place: str, deviation: torch.Tensor, statistics: list[CommonError]) -> ScriptLimits:
        most = common_error.allowed_score(self._budget)
        return ScriptLimits(
            LimitForm.COMMON, place, self._with_lost(deviation), most=most, statistics=tuple(statistics)
        )

    def _statistic(self, name: str, signs: common_error.Signs, telling: torch.Tensor) -> CommonError:
        shared = torch.full_like(self._budget.moments.gap, torch.nan)
        shared[telling] = signs.shared
        return CommonError(name, self._with_lost(shared, torch.nan), signs.recurring(self._budget), signs.answers())

    def _with_lost(self, found: torch.Tensor, missing: float = inf) -> torch.Tensor:
        """Spread rows of answered requests over those of all, where the others get `missing`."""
        if not self._lost:
            return found
        spread = found.new_full((len(self._answered), *found.shape[1:]), missing)
        spread[self._answered] = found
        return spread
