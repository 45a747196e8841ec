"""Features that a backend requires, although its capability does not say so, mark no cause."""

import pytest
from explained_causes import explained, one_request
from fake_causes import Fault, FaultyJudge, featured, hunted, names_in
from fake_search import caught, hunt
from hypothesis import strategies as st
from msgspec.structs import replace

from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import AnyMessage, Caught
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.reference.case import Case, Mode, PageOrder, Pages


def without_sinks(case: Case) -> bool:
    return not case.geometry.sinks


def test_a_failure_does_not_need_a_feature_without_which_its_case_is_refused() -> None:
    judge = FaultyJudge(Fault(needs=("soft cap",)), refuses=without_sinks)
    (found,) = caught(hunted(judge))
    assert found.needs == ("soft cap",)
    assert "sinks" in names_in(found.case)


def test_all_symptoms_of_a_bug_are_one_cause_if_its_backend_requires_a_feature() -> None:
    judge = FaultyJudge(Fault(), refuses=without_sinks)
    sent: list[AnyMessage] = []
    for mode in (Mode.DECODE, Mode.EXTEND, Mode.CHUNKED_PREFILL):
        sent += hunt(judge, st.just(featured(mode=mode, sinks=True)), examples=5, causes=_causes(sent))[1]
    found = caught(sent)
    assert len(found) >= 2
    assert [bool(each.cause) for each in found] == [False] + [True] * (len(found) - 1)


def _causes(sent: list[AnyMessage]) -> tuple[KnownCause, ...]:
    first: Caught | None = next(iter(caught(sent)), None)
    if first is None:
        return ()
    return (KnownCause(name="first", case=first.case, fingerprint=first.fingerprint, needs=first.needs),)


def wrong(_: Case) -> list[tuple[Kind, str]]:
    return [(Kind.OUTPUT_MISMATCH, "out")]


def test_a_mark_that_can_t_be_removed_here_does_not_mark_the_cause_here() -> None:
    known, failing = (one_request(mode, 1, 5, sinks=True) for mode in (Mode.EXTEND, Mode.CHUNKED_PREFILL))
    assert explained(wrong, failing, known, ("sinks",), refuses=without_sinks)
    assert not explained(wrong, failing, known, ("sinks",))
    assert not explained(wrong, failing, known, ("sinks",), failing_needs=("soft cap",), refuses=without_sinks)


@pytest.mark.parametrize("wrong_without", [False, True])
def test_a_feature_is_removed_with_those_that_require_it(*, wrong_without: bool) -> None:
    """The backend has no soft cap without sinks."""

    def fails(case: Case) -> list[tuple[Kind, str]]:
        return wrong(case) if case.geometry.sinks or wrong_without else []

    def refuses(case: Case) -> bool:
        return case.geometry.soft_cap > 0 and not case.geometry.sinks

    known = one_request(Mode.EXTEND, 1, 5, sinks=True)
    failing = replace(
        one_request(Mode.CHUNKED_PREFILL, 1, 5, sinks=True, soft_cap=30.0), pages=Pages(order=PageOrder.REVERSED)
    )
    assert explained(fails, failing, known, ("sinks",), refuses=refuses) is not wrong_without
