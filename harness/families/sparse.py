"""Sparse attention: an indexer's cache and scores, top-k, transforms of lists, and attention over lists."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace as replaced
from functools import partial
from typing import TYPE_CHECKING

import torch
from markupsafe import Markup
from msgspec.structs import replace

from attnfuzz.harness.calls.trace import FileTracer
from attnfuzz.harness.family import Edit, Family
from attnfuzz.harness.judge import judge
from attnfuzz.harness.judge.judge import Judgement, with_returned
from attnfuzz.harness.judge.parts import checked
from attnfuzz.harness.judge.selected import judge_selected
from attnfuzz.harness.judge.terms import JudgingTerms
from attnfuzz.harness.judge.written import judge_written
from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.tiers import ALPHA, Tier
from attnfuzz.kernels.interface.backend import Backend, WrittenCache
from attnfuzz.kernels.interface.compared import ComparedResult
from attnfuzz.kernels.sparse.native import backends
from attnfuzz.kernels.sparse.results import Part, Scored, Selected, SparselyAttended, SparseResult
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import SparseCase, SparseMode, SparseOp
from attnfuzz.reference.sparse.edits import EDITS, plainer
from attnfuzz.reference.sparse.features import TABLE
from attnfuzz.reference.sparse.words import describe
from attnfuzz.strategies.lean import Lean
from attnfuzz.strategies.plain_sparse import plain_sparse
from attnfuzz.strategies.sparse_space import SPARSE_SPACE

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


class SparseFamily(Family[SparseCase]):
    """Sparse attention, whose ops run in one case and are judged one by one."""

    title = "sparse attention"
    case_type, result_type = SparseCase, SparseResult
    capability_type = SparseCapability
    comparison = "lists compared as sets, slots bit for bit, keys and scales within their roundings"
    table = TABLE
    space = SPARSE_SPACE
    backends: tuple[Backend, ...] = backends()  # type: ignore[assignment]

    def runs(self, capability: object) -> bool:
        return isinstance(capability, SparseCapability)

    def supports(self, capability: SparseCapability) -> str:
        chains = "; ".join(" + ".join(ops) for ops in dict.fromkeys(capability.chains))
        modes = "every mode" if set(capability.modes) == set(SparseMode) else ", ".join(capability.modes)
        graphs = ", graphs" if capability.replays else ""
        attends = any(SparseOp.ATTENTION in ops for ops in capability.chains)
        formats = f"; a KV cache of {', '.join(capability.formats)}" if attends else ""
        return f"{chains}.\n{modes.capitalize()}{graphs}{formats}."

    def cases(self, capability: SparseCapability, backend: str, lean: Lean) -> "SearchStrategy[SparseCase]":
        from attnfuzz.strategies.sparse import cases  # noqa: PLC0415 - jobs alone draw, with Hypothesis

        return cases(capability, backend, lean)

    def plain_cases(self, capability: SparseCapability, backend: str) -> Iterable[SparseCase]:
        return plain_sparse(capability, backend)

    def outline(self, case: SparseCase) -> tuple[str, ...]:
        kind = f" over {case.geometry.format}" if case.has(SparseOp.ATTENTION) else ""
        return f"{' + '.join(case.ops)}{kind}", ", ".join(case.modes)

    def noise_dtypes(self, capability: SparseCapability) -> tuple[DType, ...]:
        """Return the keys of noise models: float8_e4m3fn of scores, bfloat16 of the attention."""
        ops = {op for chain in capability.chains for op in chain}
        keys = {SparseOp.LOGITS: DType.FLOAT8_E4M3, SparseOp.ATTENTION: DType.BFLOAT16}
        return tuple(dtype for op, dtype in keys.items() if op in ops)

    def noise_dtype(self, case: SparseCase) -> DType | None:
        return DType.BFLOAT16 if case.has(SparseOp.ATTENTION) else None

    def check(self, result: SparseResult) -> None:
        for each in checked(result.parts, tuple, "parts"):
            checked(each, (Scored, Selected, SparselyAttended, WrittenCache), "part")  # type: ignore[arg-type]

    def judge(self, case: AnyCase, result: SparseResult, terms: JudgingTerms) -> Judgement:
        """Judge the results of the ops in their order, up to the first wrong one."""
        margins: dict[str, float] = {}
        total = Judgement((), margins, 0, 0.0, 0.0)
        for part in result.parts:
            found, words = _judged(case, part, terms), result.returned.get(part.kernel, "")
            for tier, margin in found.margins.items():
                margins[tier] = max(margin, margins.get(tier, 0.0))
            total = replaced(
                total,
                observations=tuple(with_returned(each, words) for each in found.observations),
                rows=total.rows + found.rows,
                reference_seconds=total.reference_seconds + found.reference_seconds,
                judge_seconds=total.judge_seconds + found.judge_seconds,
                unanswered=total.unanswered + found.unanswered,
                evidence=found.evidence,
                worst=found.worst,
            )
            if any(not each.gap for each in found.observations):
                break
        return total

    def record(self, case: AnyCase, result: SparseResult, tracer: FileTracer) -> None:
        """Record the right result of the last op. Results of earlier ones were replaced by right ones."""
        part = result.parts[-1]
        if isinstance(part, SparselyAttended):
            tracer.output(part.output, geometry_of(part))
        elif isinstance(part, Selected):
            tracer.compared(ComparedResult(lists=(part.compared,)))
        elif isinstance(part, WrittenCache):
            tracer.written(part)
        elif isinstance(part, Scored):
            tracer.written(part.written(ALPHA))

    def edits(self, capability: object) -> tuple[Edit[SparseCase], ...]:
        del capability
        return EDITS

    def plain(self, case: SparseCase) -> Iterator[SparseCase]:
        return plainer(case)

    def first_steps(self, case: SparseCase, count: int) -> SparseCase:
        return replace(case, steps=case.steps[:count])

    def without_a_mode(self, case: SparseCase) -> Iterator[SparseCase]:
        for mode in dict.fromkeys(step.mode for step in case.steps):
            yield replace(case, steps=tuple(step for step in case.steps if step.mode is not mode))

    def rows(self, case: SparseCase) -> int:
        return sum(step.tokens for step in case.steps)

    def work(self, case: SparseCase) -> int:
        return sum(request.q_len * request.kv_len for step in case.steps for request in step.requests)

    def parts(self, case: SparseCase, failing_step: int) -> Iterator[SparseCase]:
        yield replace(case, steps=case.steps[: failing_step + 1]) if failing_step >= 0 else case

    def describe(self, case: SparseCase, *, notes: bool = True) -> str:
        del notes
        return describe(case)

    def picture(self, case: SparseCase, failure: Observation) -> Markup:
        from attnfuzz.harness.report.sparse_drawing import draw_lists  # noqa: PLC0415 - for reports alone

        return draw_lists(case, failure)

    def traits(self, case: SparseCase) -> Sequence[str]:
        return (*dict.fromkeys(case.ops), *super().traits(case))


def _judged(case: AnyCase, part: Part, terms: JudgingTerms) -> Judgement:
    exact = Tier.T0 in terms.tiers
    if isinstance(part, SparselyAttended):
        assert terms.noise is not None
        return judge(
            part.output,
            geometry=geometry_of(part),
            contract=terms.contract if part.output.lse is not None else replace(terms.contract, lse=None),
            noise=terms.noise,
            alpha=terms.alpha,
            strict=terms.strict,
            tiers=terms.tiers,
            step=terms.step,
            mode=terms.mode,
            kernel=part.kernel,
        )
    report = partial(terms.report, kernel=part.kernel)
    if isinstance(part, Selected):
        began = time.perf_counter()
        wrong = judge_selected(part, report) if exact else None
        found = () if wrong is None else (wrong,)
        return Judgement(found, {}, len(part.lists), 0.0, time.perf_counter() - began)
    began = time.perf_counter()
    written = part.written(terms.alpha) if isinstance(part, Scored) else part
    judgement = judge_written(written, report)
    if not exact:
        judgement = replaced(judgement, observations=())
    del case
    return replaced(judgement, reference_seconds=0.0, judge_seconds=time.perf_counter() - began)


def geometry_of(part: SparselyAttended) -> Geometry:
    """Return the geometry of the attention, for the judge."""
    output = part.output
    _, heads, value_dim = output.out.shape
    key = output.attended[0].key if output.attended else torch.zeros(0, 1, value_dim)
    return Geometry(
        q_heads=heads,
        kv_heads=key.shape[1],
        head_dim_qk=key.shape[2],
        head_dim_vo=value_dim,
        page_size=1,
        sinks=output.sinks is not None,
    )


SPARSE = SparseFamily()
