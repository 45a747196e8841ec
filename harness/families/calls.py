"""Literal calls: they are not drawn, and test any family's ops."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from attnfuzz.harness.calls.literal_calls import CallSession, answered_geometry
from attnfuzz.harness.family import Edit, Family
from attnfuzz.harness.judge.compared import judge_compared
from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.harness.reduce.search import CALL_EDITS
from attnfuzz.harness.triage.variants import Way, ways_of_calls
from attnfuzz.harness.verdict.describe import describe_calls
from attnfuzz.kernels.interface.backend import Backend, Bench, Session
from attnfuzz.kernels.interface.compared import ComparedResult
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.dtypes import DType

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


class CallsFamily(Family[CallCase]):
    """Literal calls of ops."""

    case_type = CallCase

    result_type = ComparedResult
    """Its sessions may have the results of other families as well."""

    def noise_dtype(self, case: CallCase) -> DType | None:
        return None if case.answer is None else answered_geometry(case).dtype

    def open(self, case: CallCase, backend: Backend, bench: Bench) -> Session:
        return CallSession(case, backend, bench)

    def judge(self, case: object, result: ComparedResult, terms: JudgingTerms) -> Judgement:
        return judge_compared(result, terms)

    def runs(self, capability: object) -> bool:
        del capability
        return False

    def cases(self, capability: object, backend: str, lean: object) -> "SearchStrategy[CallCase]":
        raise NotImplementedError("calls are recorded, or written by hand")

    def edits(self, capability: object) -> tuple[Edit[CallCase], ...]:
        del capability
        return CALL_EDITS

    def other_ways(self, case: CallCase, failing_step: int) -> Iterator[Way]:
        del failing_step
        return ways_of_calls(case)

    def describe(self, case: CallCase, *, notes: bool = True) -> str:
        return describe_calls(case, notes=notes)


CALLS = CallsFamily()
