"""Two causes are one if a finding of one is predicted by the other."""

from explained_causes import Faulty, judged, one_request
from msgspec.structs import replace

from attnfuzz.harness.search.compared import compared
from attnfuzz.harness.search.known import KnownCause, Showing
from attnfuzz.harness.search.messages import CausePair, ShrinkBudget
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.case import Case, Mode

WRONG = [(Kind.OUTPUT_MISMATCH, "out")]


def shown(faulty: Faulty, case: Case, *needs: str) -> Showing:
    return Showing(case=case, fingerprint=Fingerprint.of(case.backend, judged(faulty, case).failures[0]), needs=needs)


def cause(name: str, first: Showing, *others: Showing) -> KnownCause:
    return KnownCause(name=name, case=first.case, fingerprint=first.fingerprint, needs=first.needs, showings=others)


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


SINKS = shown(with_sinks_or_cap, one_request(Mode.EXTEND, 1, 5, sinks=True), "sinks")
CAP = shown(with_sinks_or_cap, one_request(Mode.DECODE, 1, 5, soft_cap=30.0), "soft cap")
OTHER_SINKS = shown(with_sinks_or_cap, one_request(Mode.DECODE, 1, 9, sinks=True), "sinks")


def test_causes_of_which_no_finding_predicts_one_of_the_other_are_apart() -> None:
    assert not one_cause(with_sinks_or_cap, cause("one", SINKS), cause("other", CAP))


def test_causes_are_one_if_another_finding_is_predicted() -> None:
    assert one_cause(with_sinks_or_cap, cause("one", SINKS), cause("other", CAP, OTHER_SINKS))
    assert one_cause(with_sinks_or_cap, cause("one", CAP, OTHER_SINKS), cause("other", SINKS))


def test_a_finding_of_which_the_cause_s_features_do_not_matter_is_no_symptom() -> None:
    """The second fault shows with and without sinks, in a case that has them."""

    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        return WRONG if case.geometry.soft_cap or (case.geometry.sinks and case.steps[0].mode is Mode.EXTEND) else []

    both = shown(two_faults, one_request(Mode.DECODE, 1, 9, sinks=True, soft_cap=30.0), "soft cap")
    assert not one_cause(two_faults, cause("one", SINKS), cause("other", CAP, both))


def test_a_failure_that_needs_a_clue_is_no_symptom_of_a_cause_that_needs_none() -> None:
    """Without sinks and soft cap it fails as the cause does, but without sinks alone it passes."""

    def faults(case: Case) -> list[tuple[Kind, str]]:
        return WRONG if case.geometry.sinks or not case.geometry.soft_cap else []

    capped = one_request(Mode.CHUNKED_PREFILL, 1, 5, sinks=True, soft_cap=30.0)
    one, other = (shown(faults, one_request(mode, 1, 5)) for mode in (Mode.EXTEND, Mode.CHUNKED_PREFILL))
    assert not one_cause(faults, cause("one", one), cause("other", shown(faults, capped, "sinks")))
    assert one_cause(faults, cause("one", one), cause("other", other))


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
    causes = (cause(case.backend, shown(taken_for_dense, case, case.arguments[0])) for case in (lengths, starts))
    assert one_cause(taken_for_dense, *causes)
