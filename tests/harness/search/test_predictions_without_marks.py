"""A cause without clues fails nearly everywhere, also in cases that fail for another reason."""

from collections.abc import Collection
from functools import partial

from explained_causes import explained, judged, lengths, one_request
from fake_causes import Fault, FaultyJudge, names_in
from fake_search import caught, hunt
from hypothesis import strategies as st
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.verdict.failures import Kind, Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, KvView, Mode, Pages, TableTail, Unused, Views
from attnfuzz.reference.relation import Relation


def nan_used(
    case: Case, modes: Collection[Mode], *, counted: Collection[Mode] = (), behind: bool = True
) -> list[tuple[Kind, str]]:
    """A kernel that multiplies NaN by 0 in some modes; in those `counted`, keys past the end have a weight too."""
    if case.steps[-1].mode not in modes:
        return []
    contents = case.pages.behind if behind else case.pages.free
    if contents is Unused.NAN:
        return [(Kind.NOT_FINITE, "out")]
    return [(Kind.OUTPUT_MISMATCH, "out")] if case.steps[-1].mode in counted else []


CONTEXT = (Mode.EXTEND, Mode.CHUNKED_PREFILL)


BEHIND = ("NaN behind the last key",)


def test_nan_in_the_same_memory_is_one_cause_in_all_modes_of_a_kernel() -> None:
    known, failing = (replace(one_request(mode, 1, 5), views=Views(kv=KvView.PAIRED)) for mode in CONTEXT)
    assert explained(lambda case: nan_used(case, CONTEXT), failing, known, BEHIND)


def test_a_feature_that_a_backend_cannot_do_without_marks_no_other_cause() -> None:
    known, failing = (replace(one_request(mode, 1, 5), views=Views(kv=KvView.PAIRED)) for mode in CONTEXT)
    for needs in (BEHIND, ()):
        faulty = partial(nan_used, modes=CONTEXT) if needs else lambda _case: [(Kind.NOT_FINITE, "out")]
        assert explained(faulty, failing, known, needs, allowed=lambda case: case.views.kv is KvView.PAIRED)


def test_nan_in_the_same_memory_marks_two_causes_in_two_kernels() -> None:
    known, failing = one_request(Mode.DECODE, 1, 5), one_request(Mode.EXTEND, 1, 5)
    assert not explained(lambda case: nan_used(case, Mode.of_kernels()), failing, known, BEHIND)


def test_nan_in_other_memory_is_another_cause() -> None:
    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        return [*nan_used(case, [Mode.EXTEND]), *nan_used(case, [Mode.CHUNKED_PREFILL], behind=False)]

    behind, free = (one_request(mode, 1, 5) for mode in CONTEXT)
    assert not explained(two_faults, free, behind, BEHIND)
    assert not explained(two_faults, behind, free, ("NaN in free pages",))


def test_keys_past_the_end_that_count_are_another_cause_than_nan_there() -> None:
    """Numbers in these slots make the one wrong and the other pass."""

    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        return nan_used(case, CONTEXT, counted=[Mode.CHUNKED_PREFILL])

    known, failing = (one_request(mode, 1, 5) for mode in CONTEXT)
    assert not explained(two_faults, failing, known, BEHIND)
    numbers = replace(failing, pages=Pages(behind=Unused.NUMBERS))
    wrong = Fingerprint.of("fake", judged(two_faults, numbers).failures[0])
    other = KnownCause(name="other", case=numbers, fingerprint=wrong)
    assert not explained(two_faults, failing, known, BEHIND, beside=(other,))


def test_a_failure_that_also_needs_a_window_is_another_cause_than_nan_alone() -> None:
    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        windowed = case.steps[-1].mode is Mode.EXTEND or case.geometry.window_left >= 0
        return nan_used(case, CONTEXT) if windowed else []

    known, failing = one_request(Mode.EXTEND, 1, 5), one_request(Mode.CHUNKED_PREFILL, 1, 5, window_left=3)
    assert not explained(two_faults, failing, known, BEHIND)


def test_a_fault_of_the_table_alone_is_no_symptom_of_one_of_lengths() -> None:
    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        if "table tail" in names_in(case):
            return [(Kind.ILLEGAL_ACCESS, "k_cache")]
        return [(Kind.OUTPUT_MISMATCH, "out")] if "partly filled page" in names_in(case) else []

    known = one_request(Mode.EXTEND, 1, 5)
    failing = replace(known, pages=replace(known.pages, tail=TableTail.POISON))
    assert not explained(two_faults, failing, known, ("partly filled page",))


def test_a_symptom_stays_with_its_cause_while_it_is_made_small() -> None:
    """On smaller pages, the same keys take several of them, which a second fault needs."""
    kinds = (Kind.OUTPUT_MISMATCH,)
    marks = ("partly filled page", "several keys")
    judge = FaultyJudge(*(Fault(needs=needs, kinds=kinds) for needs in (marks, ("several pages",))))
    known, failing = one_request(Mode.EXTEND, 1, 3), one_request(Mode.DECODE, 1, 3)
    (observation,) = judge.verdict(known).failures
    fingerprint = Fingerprint.of("fake", observation)
    cause = KnownCause(name="known", case=known, fingerprint=fingerprint, needs=marks)
    _, sent = hunt(judge, st.just(failing), examples=2, known=(fingerprint,), causes=(cause,))
    (found,) = caught(sent)
    assert found.cause == "known"
    assert names_in(found.case) >= set(marks)


KNOWN = one_request(Mode.EXTEND, 1, 5)


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


def test_a_failure_of_another_kind_or_kernel_is_not_explained() -> None:
    """Whether it is the same bug stays undecided."""

    def errs_everywhere(case: Case) -> list[tuple[Kind, str]]:
        nan = case.steps[-1].mode is Mode.CHUNKED_PREFILL
        return [(Kind.NOT_FINITE if nan else Kind.OUTPUT_MISMATCH, "out")]

    known = one_request(Mode.EXTEND, 1, 5)
    expected = {Mode.DRAFT_EXTEND: True, Mode.CHUNKED_PREFILL: False, Mode.DECODE: False}
    assert {mode: explained(errs_everywhere, one_request(mode, 1, 5), known, ()) for mode in expected} == expected
