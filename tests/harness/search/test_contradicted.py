"""A failure whose needs a cause contradicts is not filed as its symptom, though the predictions come true."""

import pytest
from explained_causes import Faulty, judged, lengths, one_request
from fake_causes import FaultyJudge
from fake_search import caught, hunt
from hypothesis import strategies as st
from msgspec.structs import replace

from attnfuzz.harness.search.known import KnownCause, Showing
from attnfuzz.harness.search.likely import contradicted
from attnfuzz.harness.verdict.failures import Kind, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, Mode


def sinks_in_both(case: Case) -> list[tuple[Kind, str]]:
    """The LSE is wrong with sinks, and the output with those and several heads in a group."""
    if not case.geometry.sinks:
        return []
    grouped = case.geometry.q_heads > case.geometry.kv_heads
    return [*([(Kind.OUTPUT_MISMATCH, "out")] if grouped else []), (Kind.LSE_MISMATCH, "lse")]


def everywhere_and_sinks_in_rows_without_keys(case: Case) -> list[tuple[Kind, str]]:
    if all(keys for _, keys in lengths(case)):
        return [(Kind.NOT_FINITE, "out")]
    return [(Kind.EMPTY_ROW, "empty rows")] if case.geometry.sinks else []


class Judge(FaultyJudge):
    """Judges cases as a faulty kernel fails on them."""

    def __init__(self, faulty: Faulty) -> None:
        super().__init__()
        self._faulty = faulty

    def verdict(self, case: Case) -> Verdict:
        return judged(self._faulty, case)


ONE_HEAD = {"q_heads": 1, "kv_heads": 1}


@pytest.mark.parametrize(
    ("faulty", "known", "needs", "failing"),
    [
        (
            sinks_in_both,
            one_request(Mode.DECODE, 1, 5, sinks=True, **ONE_HEAD),
            ("sinks",),
            one_request(Mode.TARGET_VERIFY, 1, 5, sinks=True),
        ),
        (
            everywhere_and_sinks_in_rows_without_keys,
            one_request(Mode.EXTEND, 1, 5),
            (),
            one_request(Mode.CHUNKED_PREFILL, 1, 0, sinks=True),
        ),
    ],
)
def test_a_second_fault_is_a_cause_of_its_own(
    faulty: Faulty, known: Case, needs: tuple[str, ...], failing: Case
) -> None:
    first = Fingerprint.of("fake", judged(faulty, known).failures[0])
    cause = KnownCause(name="known", case=known, fingerprint=first, needs=needs)
    _, sent = hunt(Judge(faulty), st.just(failing), examples=2, known=cause.symptoms, causes=(cause,))
    found = {each.fingerprint.kind: each.cause for each in caught(sent)}
    assert found[judged(faulty, failing).failures[0].kind] == ""


OUT = Fingerprint("fake", Kind.OUTPUT_MISMATCH, "decode", Mode.DECODE, "out")
LSE = replace(OUT, kind=Kind.LSE_MISMATCH, place="lse")
NAN = replace(LSE, kind=Kind.NOT_FINITE)


@pytest.mark.parametrize(
    ("shown_as", "needs", "expected"),
    [
        ((LSE,), ("grouped heads",), True),
        ((LSE, NAN), ("several requests",), True),
        ((LSE,), ("several keys",), False),
        ((LSE, OUT), ("grouped heads",), False),
        ((NAN,), ("grouped heads",), False),
    ],
)
def test_an_output_of_several_heads_or_requests_is_not_of_an_lse_of_one(
    shown_as: tuple[Fingerprint, ...], needs: tuple[str, ...], *, expected: bool
) -> None:
    case = one_request(Mode.DECODE, 1, 5)
    cause = KnownCause(name="known", case=case, fingerprint=shown_as[0], shown_as=shown_as)
    finding = Showing(case=case, fingerprint=OUT, needs=needs)
    assert contradicted(cause, finding) is expected
    assert not contradicted(cause, replace(finding, ablated=False))
    assert not contradicted(replace(cause, shown_with=(needs,)), finding)
