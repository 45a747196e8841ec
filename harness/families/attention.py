"""Attention on a paged KV cache. Its cases are made of steps."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from markupsafe import Markup
from msgspec.structs import replace

from attnfuzz.harness.calls.literal_calls import geometry_of
from attnfuzz.harness.calls.trace import FileTracer
from attnfuzz.harness.family import Edit, Family
from attnfuzz.harness.judge import judge
from attnfuzz.harness.judge.evidence import Evidence
from attnfuzz.harness.judge.explain import Stake
from attnfuzz.harness.judge.explain.further import further
from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.judge.metamorphic import StepComparison, compare
from attnfuzz.harness.judge.parts import checked
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.harness.reduce.buckets import edits_among
from attnfuzz.harness.reduce.defaults import with_defaults
from attnfuzz.harness.reduce.geometry import EDITS as GEOMETRY
from attnfuzz.harness.reduce.geometry import to_head_dims
from attnfuzz.harness.reduce.plain import EDITS as PLAIN
from attnfuzz.harness.reduce.transfers import moved
from attnfuzz.harness.report.drawing import draw_case
from attnfuzz.harness.triage.variants import Way, cut, ways_of_steps
from attnfuzz.harness.verdict.describe import describe
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint, traits
from attnfuzz.kernels.interface.backend import Attended, Output
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, ValueFamily
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.edits.cuts import tidy
from attnfuzz.reference.edits.lengths import EDITS as LENGTHS
from attnfuzz.reference.edits.relation import run_only_the_other
from attnfuzz.reference.edits.steps import EDITS as STEPS
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.related import NotRelated, Related, related
from attnfuzz.strategies.coverage import ATTENTION_SPACE
from attnfuzz.strategies.lean import Lean
from attnfuzz.strategies.plain_cases import plain_cases

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


class AttentionFamily(Family[Case]):
    """Attention on a paged KV cache."""

    title = "attention"
    case_type = Case
    capability_type = Capability
    table = TABLE
    space = ATTENTION_SPACE

    def runs(self, capability: object) -> bool:
        return isinstance(capability, Capability) and not capability.writes

    result_type: type[Any] = Output

    def noise_dtypes(self, capability: Capability) -> tuple[DType, ...]:
        return capability.dtypes

    def noise_dtype(self, case: Case) -> DType | None:
        return case.geometry.dtype

    def check(self, result: Any) -> None:
        for given, part in ((result.out, "out"), (result.lse, "lse"), (result.sinks, "sinks")):
            if part == "out" or given is not None:
                checked(given, torch.Tensor, part)
        for entry in checked(result.attended, tuple, "attended"):
            attended = checked(entry, Attended, "entry of attended")
            for part in ("query", "key", "value"):
                checked(getattr(attended, part), torch.Tensor, part)

    def judge(self, case: AnyCase, result: Any, terms: JudgingTerms) -> Judgement:
        assert terms.noise is not None
        return judge(
            result,
            geometry=geometry_of(case),
            contract=_answered(case, terms.contract),
            noise=terms.noise,
            alpha=terms.alpha,
            strict=terms.strict,
            tiers=terms.tiers,
            step=terms.step,
            mode=terms.mode,
            kernel=terms.kernel,
            keep=terms.keep,
        )

    def record(self, case: AnyCase, result: Any, tracer: FileTracer) -> None:
        tracer.output(result, geometry_of(case))

    def related(self, case: Case) -> Related | None:
        with contextlib.suppress(NotRelated):
            return None if case.relation is None else related(case)
        return None

    def compare(self, kept: Evidence, result: Output, other: Related, terms: JudgingTerms) -> StepComparison:
        return compare(
            kept,
            result,
            relation=other.relation,
            positions=other.positions[terms.step],
            geometry=other.case.geometry,
            contract=terms.contract,
            report=terms.report,
            strict=terms.strict,
            tiers=terms.tiers,
        )

    def further(self, case: Case, capability: Capability) -> Iterator[tuple[Stake, Case]]:
        return further(case, capability)

    def cases(self, capability: Capability, backend: str, lean: Lean) -> "SearchStrategy[Case]":
        from attnfuzz.strategies.cases import cases  # noqa: PLC0415 - jobs alone draw, with Hypothesis

        return cases(capability, backend, lean)

    def plain_cases(self, capability: Capability, backend: str) -> Iterable[Case]:
        return plain_cases(capability, backend)

    def outline(self, case: Case) -> tuple[str, ...]:
        geometry, modes = case.geometry, ", ".join(step.mode for step in case.steps)
        other = geometry.kv_dtype is not geometry.dtype
        dtypes = f"{geometry.dtype} on {geometry.kv_dtype}" if other else geometry.dtype
        further = {
            "a window": geometry.window_left >= 0,
            "sinks": geometry.sinks,
            "a soft cap": bool(geometry.soft_cap),
            "scales of K and V": (case.scales.k, case.scales.v) != (1, 1),
        }
        return modes, str(geometry.kv_layout), str(dtypes), ", ".join(name for name, has in further.items() if has)

    def first_steps(self, case: Case, count: int) -> Case:
        return replace(case, steps=case.steps[:count])

    def edits(self, capability: Capability | None) -> tuple[Edit[Case], ...]:
        edits = (run_only_the_other, *STEPS, *PLAIN, *LENGTHS, *GEOMETRY)
        if capability is None:
            return edits
        # Kernels of few geometries are not reached by small changes.
        return (*edits, *(edits_among(capability.buckets) or to_head_dims(capability.head_dims)))

    def plain(self, case: Case) -> Iterator[Case]:
        return with_defaults(case)

    def other_values(self, case: Case) -> Iterator[Case]:
        return (replace(case, values=values) for values in ValueFamily if values is not case.values)

    def without_a_mode(self, case: Case) -> Iterator[Case]:
        for mode in dict.fromkeys(step.mode for step in case.steps):
            yield tidy(replace(case, steps=tuple(step for step in case.steps if step.mode is not mode)))

    def rows(self, case: Case) -> int:
        return case.geometry.q_heads * sum(request.q_len for step in case.steps for request in step.requests)

    def work(self, case: Case) -> int:
        return sum(request.q_len * request.kv_len for step in case.steps for request in step.requests)

    def moved(self, case: Case, to: Case, fingerprint: Fingerprint) -> Iterator[Case]:
        return moved(case, to, fingerprint)

    def other_ways(self, case: Case, failing_step: int) -> Iterator[Way]:
        return ways_of_steps(case, failing_step)

    def parts(self, case: Case, failing_step: int) -> Iterator[Case]:
        # Captures alone are no case: they come with the next step.
        first = next(index for index, step in enumerate(case.steps) if step.requests)
        last = max(failing_step, first) if failing_step >= 0 else len(case.steps) - 1
        yield cut(replace(case, relation=None), last)
        if case.relation is not None:
            other = related(case)
            yield cut(other.case, other.steps[last])

    def describe(self, case: Case, *, notes: bool = True) -> str:
        del notes
        return describe(case)

    def picture(self, case: Case, failure: Observation) -> Markup:
        return draw_case(case, failure)

    def traits(self, case: Case) -> Sequence[str]:
        return traits(case)

    def circumstances(self, case: Case) -> Iterator[str]:
        if case.relation is not None:
            yield f"compared with a second run: {case.relation.words}"


def _answered(case: AnyCase, contract: Contract) -> Contract:
    """Return the contract, without an LSE if the right answer to literal calls has none.

    The calls were not asked for one, or the backend computed it from their results.
    """
    without = isinstance(case, CallCase) and case.answer is not None and case.answer.lse is None
    return replace(contract, lse=None) if without else contract


ATTENTION = AttentionFamily()
