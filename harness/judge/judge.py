"""Judging the output of one step: compute the reference answer, then run every tier."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import msgspec

from attnfuzz.harness.judge.common_error import judge_common_error, judge_common_lse_error
from attnfuzz.harness.judge.element_bound import judge_elements
from attnfuzz.harness.judge.error_budget import ErrorBudget
from attnfuzz.harness.judge.evidence import Evidence, RealRows, TierResult, packed_problem, set_aside, unanswered
from attnfuzz.harness.judge.exact import judge_exactly, lse_without_keys, misshapen
from attnfuzz.harness.judge.exact_weights import judge_exact_lse, judge_exact_rows
from attnfuzz.harness.judge.lse_bound import judge_lse
from attnfuzz.harness.judge.row_error import judge_rows
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.tiers import ALL_TIERS, ALPHA, Tier
from attnfuzz.kernels.interface.backend import Output
from attnfuzz.reference.attention import attend
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.noise import NoiseModel

STATISTICAL: tuple[tuple[Tier, str, Callable[[Evidence], TierResult | None]], ...] = (
    (Tier.T1, "out", judge_elements),
    (Tier.T5, "out", judge_exact_rows),
    (Tier.T2, "out", judge_rows),
    (Tier.T3, "out", judge_common_error),
    (Tier.T4, "lse", judge_lse),
    (Tier.T5, "lse", judge_exact_lse),
    (Tier.T3, "lse", judge_common_lse_error),
)
"""Tiers with the place that they judge, in the order in which they run. A tier returns None if it does not apply."""


@dataclass(frozen=True)
class Judgement:
    """The result of judging one output: `margins` has each tier's largest margin; `rows` counts (token, head) rows.

    `unanswered` counts rows that were not judged because they have no right answer. `kept` is a copy of the evidence,
    the baseline of a related run: it exists if it was requested, the output had the right shape, and every row has an
    answer. `worst` has the token and head of the worst row of each place that failed, or None if the failure is about
    all rows.
    """

    observations: tuple[Observation, ...]
    margins: dict[str, float]
    rows: int
    reference_seconds: float
    judge_seconds: float
    unanswered: int = 0
    kept: Evidence | None = None
    evidence: Evidence | None = None
    worst: Mapping[str, tuple[int, int] | None] = field(default_factory=dict)


def judge(
    output: Output,
    *,
    geometry: Geometry,
    contract: Contract,
    noise: NoiseModel,
    step: int,
    mode: str,
    kernel: str,
    alpha: float = ALPHA,
    strict: bool = False,
    tiers: Collection[Tier] = ALL_TIERS,
    keep: bool = False,
) -> Judgement:
    """Judge `output` against fp64 attention over its attended keys, causal and with the geometry's window.

    With `strict`, violations of the strict contract alone are also reported, marked as gaps. Only `tiers` run. With
    `keep`, the judgement includes the baseline of a related run. Requests without a right answer are not judged.
    """
    began = time.perf_counter()
    report = partial(Observation, step=step, mode=mode, kernel=kernel)
    rows = RealRows(output.attended, output.out.shape[0], output.out.device)
    wrong = misshapen(output, rows, geometry, report)
    if wrong is not None:
        return Judgement((wrong,), {}, 0, 0.0, time.perf_counter() - began)
    tokens = rows.tokens
    output, rows, budget, lost, reference_seconds = budget_of(
        output, rows, geometry, noise, alpha_of_tier(alpha, tiers)
    )
    evidence = Evidence.of(output, rows, budget, contract, report)
    observations = (
        [with_returned(each, output.returned) for each in judge_exactly(evidence)] if Tier.T0 in tiers else []
    )
    margins: dict[str, float] = {}
    worst: dict[str, tuple[int, int] | None] = {}
    observations += _statistical(evidence, tiers, margins, worst)
    if Tier.T0 in tiers and "lse" not in worst:
        # A wrong finite LSE is more informative than a wrong -inf.
        observations += lse_without_keys(evidence)
    if strict and Tier.T0 in tiers:
        known = {(observation.kind, observation.place) for observation in observations}
        best = Evidence.of(output, rows, budget, contract.strict(), partial(report, gap=True))
        observations += [gap for gap in judge_exactly(best) if (gap.kind, gap.place) not in known]
    judge_seconds = time.perf_counter() - began - reference_seconds
    heads = output.out.shape[1]
    return Judgement(
        tuple(observations),
        margins,
        rows.tokens * heads,
        reference_seconds,
        judge_seconds,
        unanswered=(tokens - rows.tokens) * heads,
        kept=_kept(evidence) if keep and not lost else None,
        evidence=evidence,
        worst=worst,
    )


def with_returned(found: Observation, returned: str) -> Observation:
    """Return an observation, of an output that was not written with the words on the value that was returned."""
    if found.kind is not Kind.UNWRITTEN or not returned:
        return found
    return msgspec.structs.replace(found, message=f"{found.message}\n{returned}")


class Budgeted(NamedTuple):
    """An output without the requests that are `lost` for want of a right answer, its rows, and its error budget.

    `seconds` is the time that the reference took.
    """

    output: Output
    rows: RealRows
    budget: ErrorBudget
    lost: frozenset[int]
    seconds: float


def budget_of(output: Output, rows: RealRows, geometry: Geometry, noise: NoiseModel, alpha: float) -> Budgeted:
    """Answer an output's problem, and return its error budget, of which each tier may spend `alpha`.

    The output has the right shape; its contents don't matter.
    """
    problem = packed_problem(output, rows, geometry)
    asked = time.perf_counter()
    answer = attend(problem, moments=True)
    lost = unanswered(answer, rows)
    if lost:
        output, rows = set_aside(output, lost)
        problem = packed_problem(output, rows, geometry)
        answer = attend(problem, moments=True)
    seconds = time.perf_counter() - asked
    budget = ErrorBudget(problem, answer, noise, output.out.dtype, output.roundings, alpha, shares=output.shares)
    return Budgeted(output, rows, budget, lost, seconds)


def alpha_of_tier(alpha: float, tiers: Collection[Tier] = ALL_TIERS) -> float:
    """Return an equal share of `alpha` for each of the statistical `tiers`, by the union bound."""
    return alpha / max(len({tier for tier, _, _ in STATISTICAL if tier in tiers}), 1)


def _statistical(
    evidence: Evidence, tiers: Collection[Tier], margins: dict[str, float], worst: dict[str, tuple[int, int] | None]
) -> Iterator[Observation]:
    """Run the statistical `tiers`. Store each margin in `margins`, and the worst row of a failed place in `worst`.

    A place that failed is not judged by later tiers: the first one that detects a failure describes it best.
    """
    if not evidence.out.numel():
        return
    failed = set()
    for tier, place, judge_place in STATISTICAL:
        result = judge_place(evidence) if tier in tiers and place not in failed else None
        if result is None:
            continue
        margins[tier] = max(result.margin, margins.get(tier, 0.0))
        if result.failure is not None:
            failed.add(place)
            worst[place] = result.worst
            yield result.failure


def _kept(evidence: Evidence) -> Evidence:
    lse = None if evidence.lse is None else evidence.lse.clone()
    return replace(evidence, out=evidence.out.clone(), lse=lse, padded=evidence.padded[:0].clone())
