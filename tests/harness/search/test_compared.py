"""Two causes are one if the failure of one is predicted by the other."""

from explained_causes import Faulty, judged, one_request
from msgspec.structs import replace

from attnfuzz.harness.search.compared import compared
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import CausePair, ShrinkBudget
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.case import Case, Mode

WRONG = [(Kind.OUTPUT_MISMATCH, "out")]


def cause(faulty: Faulty, case: Case, *needs: str) -> KnownCause:
    fingerprint = Fingerprint.of(case.backend, judged(faulty, case).failures[0])
    return KnownCause(name=f"{case.backend} {hash(case)}", case=case, fingerprint=fingerprint, needs=needs)


def one_cause(faulty: Faulty, *causes: KnownCause) -> bool:
    one, other = causes
    pair = CausePair(cause=one, other=other)

    def pin(fingerprint: Fingerprint, case: Case, verdict: Verdict) -> Pinned[Case]:
        return Pinned(
            fingerprint,
            case,
            verdict,
            run=lambda case: judged(faulty, case),
            budget=ShrinkBudget(runs=500, seconds=60),
            aside=lambda _case, _verdict: None,
        )

    return compared(pair, lambda case: judged(faulty, case), pin, lambda _: True, causes) is not None


def with_sinks_or_cap(case: Case) -> list[tuple[Kind, str]]:
    return WRONG if case.geometry.sinks or case.geometry.soft_cap else []


SINKS = cause(with_sinks_or_cap, one_request(Mode.EXTEND, 1, 5, sinks=True), "sinks")
OTHER_SINKS = cause(with_sinks_or_cap, one_request(Mode.DECODE, 1, 9, sinks=True), "sinks")
CAP = cause(with_sinks_or_cap, one_request(Mode.DECODE, 1, 5, soft_cap=30.0), "soft cap")


def test_causes_are_one_if_one_predicts_the_failure_of_the_other() -> None:
    assert one_cause(with_sinks_or_cap, SINKS, OTHER_SINKS)
    assert not one_cause(with_sinks_or_cap, SINKS, CAP)


def test_a_failure_that_needs_a_clue_is_no_symptom_of_a_cause_that_needs_none() -> None:
    """Without sinks and soft cap it fails as the cause does, but without sinks alone it passes."""

    def faults(case: Case) -> list[tuple[Kind, str]]:
        return WRONG if case.geometry.sinks or not case.geometry.soft_cap else []

    capped = one_request(Mode.CHUNKED_PREFILL, 1, 5, sinks=True, soft_cap=30.0)
    one, other = (cause(faults, one_request(mode, 1, 5)) for mode in (Mode.EXTEND, Mode.CHUNKED_PREFILL))
    assert not one_cause(faults, one, cause(faults, capped, "sinks"))
    assert one_cause(faults, one, other)


def test_causes_of_one_misread_argument_are_one_across_entry_points() -> None:
    def taken_for_dense(case: Case) -> list[tuple[Kind, str]]:
        return WRONG if case.arguments else []

    lengths, starts = (
        replace(one_request(Mode.DECODE, 1, 5), backend=backend, arguments=(form,))
        for backend, form in (
            ("cuda_graph_decode", ArgumentForm.LENGTHS_INT64),
            ("fa2_ragged", ArgumentForm.QUERY_STARTS_GAPS),
        )
    )
    causes = (cause(taken_for_dense, case, case.arguments[0]) for case in (lengths, starts))
    assert one_cause(taken_for_dense, *causes)
