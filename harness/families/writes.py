"""Writes of new tokens into a paged KV cache: cases of attention, whose result is the cache."""

from dataclasses import replace
from functools import partial
from typing import Any

from attnfuzz.harness.calls.trace import FileTracer
from attnfuzz.harness.families.attention import AttentionFamily
from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.harness.judge.written import judge_written
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.interface.backend import WrittenCache
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.dtypes import DType


class WritesFamily(AttentionFamily):
    """Writers of the KV cache."""

    title = "cache writes"
    result_type = WrittenCache
    persists = True

    def noise_dtypes(self, capability: Capability) -> tuple[DType, ...]:
        return ()

    def check(self, result: Any) -> None:
        """Accept every cache: its tensors are read only where they are compared."""

    def judge(self, case: AnyCase, result: Any, terms: JudgingTerms) -> Judgement:
        report = partial(terms.report, kernel=result.kernel) if result.kernel else terms.report
        judgement = judge_written(result, report)
        return judgement if Tier.T0 in terms.tiers else replace(judgement, observations=(), rows=0)

    def record(self, case: AnyCase, result: Any, tracer: FileTracer) -> None:
        tracer.written(result)

    def runs(self, capability: object) -> bool:
        return isinstance(capability, Capability) and capability.writes


WRITES = WritesFamily()
