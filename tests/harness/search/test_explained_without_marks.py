"""A known cause that nothing marks fails nearly everywhere, also in cases that fail for another reason."""

from explained_causes import explained, lengths, one_request
from fake_causes import FaultyJudge, names_in
from fake_search import caught, hunt
from hypothesis import strategies as st
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, Mode, Unused
from attnfuzz.reference.relation import Relation

KNOWN = one_request(Mode.EXTEND, 1, 5)


def test_rows_without_keys_are_no_symptom_of_wrong_numbers() -> None:
    """They have no numbers to be wrong. A NaN may be in all rows."""
    for everywhere, one in ((Kind.OUTPUT_MISMATCH, False), (Kind.NOT_FINITE, True)):

        def faults(case: Case, kind: Kind = everywhere) -> list[tuple[Kind, str]]:
            return [(kind, "out") if all(keys for _, keys in lengths(case)) else (Kind.EMPTY_ROW, "empty rows")]

        assert explained(faults, one_request(Mode.CHUNKED_PREFILL, 1, 0), KNOWN, ()) is one


def test_a_nan_is_a_symptom_of_wrong_numbers_if_the_cause_s_case_has_it_on_the_same_memory() -> None:
    """The second kernel reads free pages only if there are sinks; the error of both depends on them."""
    for with_sinks in (False, True):

        def reads(case: Case, sinks: bool = with_sinks) -> list[tuple[Kind, str]]:
            nan = case.pages.free is Unused.NAN and (case.geometry.sinks or not sinks)
            return [(Kind.NOT_FINITE if nan else Kind.OUTPUT_MISMATCH, "out")]

        known = replace(KNOWN, pages=replace(KNOWN.pages, free=Unused.NUMBERS))
        failing = one_request(Mode.CHUNKED_PREFILL, 1, 5, sinks=True)
        same = explained(reads, failing, known, (), errs=lambda case: 3.0 if case.pages.free is Unused.NAN else 5.0)
        assert same is not with_sinks


class ManyKeysOrSinks(FaultyJudge):
    """A kernel that is wrong with three keys and more, which no feature tells, and with sinks."""

    def verdict(self, case: Case) -> Verdict:
        wrong = case.geometry.sinks or sum(keys for _, keys in lengths(case)) > 2
        mode = case.steps[-1].mode.value
        failure = Observation(
            kind=Kind.OUTPUT_MISMATCH, place="out", message="wrong", step=0, mode=mode, kernel="attend", margin=9.0
        )
        return Verdict(observations=(failure,) if wrong else ())


def test_a_symptom_is_made_small_without_the_clues_of_other_causes() -> None:
    judge = ManyKeysOrSinks()
    fingerprint = Fingerprint.of("fake", judge.verdict(KNOWN).failures[0])
    known = KnownCause(name="known", case=KNOWN, fingerprint=fingerprint)
    drawn = st.just(one_request(Mode.DECODE, 1, 4, sinks=True))
    _, sent = hunt(judge, drawn, examples=2, known=(fingerprint,), causes=(known,))
    (found,) = caught(sent)
    assert found.cause == "known"
    assert "sinks" not in names_in(found.case)


def test_rows_without_keys_that_need_sinks_say_nothing_of_rows_with_keys_and_none() -> None:
    """A sink of another head, and a part of the keys that is dropped."""

    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        empty = case.geometry.sinks and any(keys == 0 for _, keys in lengths(case))
        lse = [(Kind.LSE_MISMATCH, "lse")] if any(keys > 1 for _, keys in lengths(case)) else []
        return [(Kind.EMPTY_ROW, "empty rows"), *lse] if empty else lse

    known = Case(backend="fake", geometry=replace(HEADS, sinks=True), steps=(step(Mode.DECODE, (1, 0), (1, 5)),))
    failing = one_request(Mode.DECODE, 1, 5)
    # In other modes, the sink of another head is wrong in rows with keys.
    also = Fingerprint("fake", Kind.LSE_MISMATCH, "attend", Mode.EXTEND, "lse")
    assert not explained(two_faults, failing, known, ("empty KV", "sinks"), shown_as=(also,))


def test_rows_without_keys_say_nothing_of_two_runs_that_differ_in_other_rows() -> None:
    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        empty = any(keys == 0 for _, keys in lengths(case))
        return [(Kind.EMPTY_ROW, "empty rows")] if empty else [(Kind.METAMORPHIC_MISMATCH, "lse")]

    failing = replace(one_request(Mode.DECODE, 1, 5), relation=Relation.REQUEST_APPENDED)
    known = replace(one_request(Mode.DECODE, 1, 0), relation=Relation.REQUEST_APPENDED)
    also = Fingerprint("fake", Kind.LSE_MISMATCH, "attend", Mode.EXTEND, "lse")
    assert not explained(two_faults, failing, known, ("empty KV",), shown_as=(also,))
