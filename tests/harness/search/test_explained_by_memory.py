"""A known cause explains a failure by the memory that both read: NaN in it, and the pages that are met."""

from collections.abc import Collection
from functools import partial

import pytest
from explained_causes import explained, judged, lengths, one_request, padded
from fake_causes import Fault, FaultyJudge, featured, names_in
from fake_search import caught, hunt
from hypothesis import strategies as st
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case, KvView, Mode, Outputs, Pages, TableTail, Unused, Views


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


def test_rows_of_padding_show_a_cause_by_nan_alone() -> None:
    """They need only be finite: that numbers make them pass is no mark of a cause."""

    def wrong_pages(case: Case) -> list[tuple[Kind, str]]:
        if not padded(case):
            return [(Kind.OUTPUT_MISMATCH, "out")]
        return [(Kind.NOT_FINITE, "padded rows")] if case.pages.free is Unused.NAN else []

    failing = Case(backend="fake", geometry=HEADS, steps=(step(Mode.EXTEND, (2, 9), rows=4),))
    assert explained(wrong_pages, failing, one_request(Mode.EXTEND, 1, 5), ())


@pytest.mark.parametrize("strays", [True, False])
def test_a_flaky_nan_without_a_mark_is_no_symptom_of_a_wrong_number(*, strays: bool) -> None:
    """A second fault reads what lies behind the pages in another order, which is harmless for most seeds."""

    def faults(case: Case) -> list[tuple[Kind, str]]:
        capped = "soft cap" in names_in(case)
        if "sinks" in names_in(case):
            return [(Kind.NOT_FINITE if capped else Kind.OUTPUT_MISMATCH, "out")]
        return [(Kind.NOT_FINITE, "out")] if strays and capped and case.seed % 8 == 5 else []

    known, failing = featured(sinks=True), featured(sinks=True, soft_cap=30.0)
    assert explained(faults, failing, known, ("sinks",)) is not strays


def test_the_lse_of_empty_rows_shows_with_sinks_alone() -> None:
    """Without them, the LSE of no keys is the same for each part of a row."""

    def of_a_part(case: Case) -> list[tuple[Kind, str]]:
        if not case.max_len_slack:
            return []
        if any(kv_len for _, kv_len in lengths(case)):
            return [(Kind.LSE_MISMATCH, "lse")]
        return [(Kind.EMPTY_ROW, "empty rows")] if case.geometry.sinks else []

    full = replace(one_request(Mode.DECODE, 1, 5), max_len_slack=8)
    empty = replace(one_request(Mode.DECODE, 1, 0, sinks=True), max_len_slack=8)
    assert explained(of_a_part, empty, full, ("stated maxima",))


def test_a_stray_read_fails_by_the_table_that_it_meets() -> None:
    """The last page is left out if it is not full, and the entry behind it is read instead."""

    def reads_past_the_last_page(case: Case) -> list[tuple[Kind, str]]:
        if "partly filled page" not in names_in(case):
            return []
        met = {TableTail.POISON: (Kind.ILLEGAL_ACCESS, "k_cache"), TableTail.MINUS_ONE: (Kind.NOT_FINITE, "out")}
        return [met.get(case.pages.tail, (Kind.OUTPUT_MISMATCH, "out"))]

    known = one_request(Mode.EXTEND, 1, 5)
    for tail in (TableTail.POISON, TableTail.MINUS_ONE):
        failing = replace(known, pages=replace(known.pages, tail=tail))
        assert explained(reads_past_the_last_page, failing, known, ("partly filled page",))


def test_a_fault_of_the_table_alone_is_no_symptom_of_one_of_lengths() -> None:
    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        if "table tail" in names_in(case):
            return [(Kind.ILLEGAL_ACCESS, "k_cache")]
        return [(Kind.OUTPUT_MISMATCH, "out")] if "partly filled page" in names_in(case) else []

    known = one_request(Mode.EXTEND, 1, 5)
    failing = replace(known, pages=replace(known.pages, tail=TableTail.POISON))
    assert not explained(two_faults, failing, known, ("partly filled page",))


@pytest.mark.parametrize("read", [True, False])
def test_a_wrong_number_that_memory_does_not_change_explains_no_nan_of_it(*, read: bool) -> None:
    """Both modes err in all cases, by what they `read` in free pages or by themselves; one has a NaN from there."""

    def errs_anyhow(case: Case) -> list[tuple[Kind, str]]:
        nan = case.pages.free is Unused.NAN and (read or case.steps[-1].mode is Mode.CHUNKED_PREFILL)
        return [(Kind.NOT_FINITE if nan else Kind.OUTPUT_MISMATCH, "out")]

    known, failing = (one_request(mode, 1, 5) for mode in CONTEXT)
    if read:
        known = replace(known, pages=replace(known.pages, free=Unused.NUMBERS))
    assert explained(errs_anyhow, failing, known, (), errs=lambda _: 3.0) is read


def test_a_failure_that_needs_nan_in_the_outputs_is_none_that_numbers_there_show_too() -> None:
    """Repairs of empty rows: one leaves both results of later requests, the other multiplies old outputs by zero."""

    def leaves_both(case: Case) -> list[tuple[Kind, str]]:
        if "idle request" not in names_in(case):
            return []
        return [(Kind.UNWRITTEN if case.outputs is Outputs.POISONED else Kind.OUTPUT_MISMATCH, "out")]

    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        chunked = case.steps[-1].mode is Mode.CHUNKED_PREFILL
        return leaves_both(case) if not chunked or case.outputs is Outputs.POISONED else []

    known, failing = (Case(backend="fake", geometry=HEADS, steps=(step(mode, (1, 5), (0, 5)),)) for mode in CONTEXT)
    assert explained(leaves_both, failing, known, ("idle request",))
    assert not explained(two_faults, failing, known, ("idle request",))


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
