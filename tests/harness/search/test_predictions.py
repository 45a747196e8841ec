"""A known cause explains a failure if what it predicts of the failure's case comes true."""

from functools import partial

import pytest
from explained_causes import explained, judged, lengths, one_request, padded
from fake_causes import featured, names_in
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.reduce.transfers import captured
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.needs import needs_of
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import (
    Case,
    Launch,
    Mode,
    Pages,
    Workspace,
)
from attnfuzz.reference.dtypes import DType


def sinks_missing_from_lse(case: Case) -> list[tuple[Kind, str]]:
    if not case.geometry.sinks:
        return []
    empty = all(kv_len == 0 for _, kv_len in lengths(case))
    return [(Kind.EMPTY_ROW, "empty rows") if empty else (Kind.LSE_MISMATCH, "lse")]


def test_a_fault_that_empty_rows_alone_show_is_none_that_full_rows_show() -> None:
    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        if all(kv_len == 0 for _, kv_len in lengths(case)):
            return [(Kind.EMPTY_ROW, "empty rows")]
        return sinks_missing_from_lse(case)

    empty = one_request(Mode.EXTEND, 1, 0, sinks=True)
    assert not explained(two_faults, empty, one_request(Mode.EXTEND, 2, 5, sinks=True), ("sinks",))


def test_requests_with_fewer_keys_than_queries_keep_them_in_another_mode() -> None:
    def short_kv(case: Case) -> list[tuple[Kind, str]]:
        return [(Kind.EMPTY_ROW, "empty rows")] if any(0 < kv < q for q, kv in lengths(case)) else []

    extend, verify = one_request(Mode.EXTEND, 3, 2), one_request(Mode.TARGET_VERIFY, 3, 2)
    assert explained(short_kv, verify, extend, ("fewer keys than queries",))


@pytest.mark.parametrize("mode", [Mode.EXTEND, Mode.CHUNKED_PREFILL, Mode.DRAFT_EXTEND_V2])
def test_padding_stays_in_another_mode(mode: Mode) -> None:
    def leaks(case: Case) -> list[tuple[Kind, str]]:
        return [(Kind.OUTPUT_MISMATCH, "out")] if padded(case) else []

    known = Case(backend="fake", geometry=HEADS, steps=(step(Mode.DECODE, (1, 5), rows=3),))
    extend = step(mode, (2, 9), rows=3 if mode is Mode.DRAFT_EXTEND_V2 else 4, stride=2 if mode.speculative else 0)
    assert explained(leaks, Case(backend="fake", geometry=HEADS, steps=(extend,)), known, ("padding",))


def test_a_feature_that_the_kind_of_failure_does_not_ask_for_is_another_cause_s() -> None:
    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        found = [(Kind.NOT_FINITE, "out")] if case.geometry.sinks and case.geometry.soft_cap else []
        return found + ([(Kind.LSE_MISMATCH, "lse")] if case.geometry.sinks else [])

    assert not explained(two_faults, featured(sinks=True, soft_cap=30.0), featured(sinks=True), ("sinks",))


def test_a_cause_whose_needs_are_not_known_explains_cases_with_all_its_clues_alone() -> None:
    def always(_case: Case) -> list[tuple[Kind, str]]:
        return [(Kind.OUTPUT_MISMATCH, "out")]

    plain, windowed = one_request(Mode.EXTEND, 1, 5), one_request(Mode.EXTEND, 1, 5, window_left=3)
    assert explained(always, plain, windowed, ())
    assert not explained(always, plain, windowed, (), ablated=False)


@pytest.mark.parametrize(("mode", "same"), [(Mode.CHUNKED_PREFILL, True), (Mode.DECODE, False)])
def test_a_fault_of_all_cases_explains_those_of_its_kernel(mode: Mode, same: bool) -> None:
    def always(case: Case) -> list[tuple[Kind, str]]:
        return [(Kind.OUTPUT_MISMATCH, "out")] if "sinks" not in names_in(case) else []

    assert explained(always, one_request(mode, 1, 5), one_request(Mode.EXTEND, 1, 5), ()) is same


def test_a_failure_of_several_steps_is_one_cause_in_all_modes_of_a_kernel() -> None:
    def state_is_kept(case: Case) -> list[tuple[Kind, str]]:
        if len(case.steps) < 2:
            return []
        return [(Kind.NOT_FINITE if case.steps[-1].mode is Mode.EXTEND else Kind.OUTPUT_MISMATCH, "out")]

    first, second = step(Mode.EXTEND, (2, 5)), step(Mode.CHUNKED_PREFILL, (2, 5))
    known = Case(backend="fake", geometry=HEADS, steps=(first, replace(first, requests=first.requests)))
    failing = replace(known, steps=(second, second))
    assert explained(state_is_kept, failing, known, ("several steps",))


def test_two_faults_of_all_cases_with_several_pages_stay_apart_by_their_kinds() -> None:
    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        if "several pages" not in names_in(case):
            return []
        longest = max(case.slot_lengths().values())
        return [(Kind.ILLEGAL_ACCESS, "out") if longest > 8 else (Kind.OUTPUT_MISMATCH, "out")]

    long, short = one_request(Mode.EXTEND, 1, 12), one_request(Mode.EXTEND, 1, 6)
    assert not explained(two_faults, long, short, ("several pages",))


def test_a_nan_of_long_requests_is_no_symptom_of_wrong_numbers_of_several_pages() -> None:
    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        if "several pages" not in names_in(case):
            return []
        return [(Kind.NOT_FINITE if max(case.slot_lengths().values()) > 8 else Kind.OUTPUT_MISMATCH, "out")]

    long, short = one_request(Mode.EXTEND, 1, 12), one_request(Mode.EXTEND, 1, 6)
    assert not explained(two_faults, long, short, ("several pages",))


def test_a_failure_that_looks_different_on_one_page_is_no_other_cause() -> None:
    """With one key, the output is that key's value, whatever its logit."""

    def logits_scaled(case: Case) -> list[tuple[Kind, str]]:
        shown = [(Kind.OUTPUT_MISMATCH, "out")] if max(case.slot_lengths().values()) > 4 else []
        return [*shown, (Kind.LSE_MISMATCH, "lse")]

    known, failing = one_request(Mode.EXTEND, 1, 6), one_request(Mode.CHUNKED_PREFILL, 1, 6)
    assert explained(logits_scaled, failing, known, ("several keys",))


def rows_without_keys(case: Case) -> list[tuple[Kind, str]]:
    """What a kernel that divides by zero does, however it comes to a row without keys."""
    empty = any(kv_len < q_len for q_len, kv_len in lengths(case))
    found = [(Kind.EMPTY_ROW, "empty rows")] if empty else []
    return found + ([(Kind.NOT_FINITE, "padded rows")] if padded(case) else [])


def test_requests_without_keys_say_nothing_of_those_with_few() -> None:
    def short_alone(case: Case) -> list[tuple[Kind, str]]:
        return [(Kind.EMPTY_ROW, "empty rows")] if any(0 < kv < q for q, kv in lengths(case)) else []

    def both(case: Case) -> list[tuple[Kind, str]]:
        empty = case.geometry.sinks and any(kv == 0 for _, kv in lengths(case))
        return short_alone(case) or ([(Kind.EMPTY_ROW, "empty rows")] if empty else [])

    short, empty = one_request(Mode.EXTEND, 3, 2), one_request(Mode.EXTEND, 1, 0, sinks=True)
    assert not explained(both, empty, short, ("fewer keys than queries",))
    assert not explained(both, short, empty, ("empty KV", "sinks"))


def test_errors_in_16_bits_are_another_cause_than_rows_without_keys_in_any_dtype() -> None:
    """As in JAX, which rounds the LSE to the dtype of the keys, and answers rows without keys."""

    def both(case: Case) -> list[tuple[Kind, str]]:
        found = [(Kind.EMPTY_ROW, "empty rows")] if any(kv < q for q, kv in lengths(case)) else []
        rounded = case.geometry.dtype is not DType.FLOAT32 and any(kv for _, kv in lengths(case))
        return found + ([(Kind.LSE_MISMATCH, "lse")] if rounded else [])

    halves = {"dtype": DType.BFLOAT16, "kv_dtype": DType.BFLOAT16}
    empty, full = one_request(Mode.EXTEND, 1, 0, **halves), one_request(Mode.EXTEND, 1, 1, **halves)
    assert not explained(both, empty, full, ("16 bits",))
    assert not explained(both, full, empty, ("empty KV",))
    assert explained(both, one_request(Mode.DECODE, 1, 1, **halves), full, ("16 bits",))


def test_an_error_near_its_bound_is_tried_with_more_values() -> None:
    """It passes without the window for many seeds, though the window has no part in it."""

    def lucky(case: Case) -> list[tuple[Kind, str]]:
        shown = case.geometry.window_left == 3 or case.seed % 5 == 4
        return [(Kind.OUTPUT_MISMATCH, "out")] if shown else []

    failing = one_request(Mode.EXTEND, 2, 9, window_left=3)
    for error, needs in ((1.2, False), (200.0, True)):
        verdict = judged(lucky, failing, {failing: error}.get)
        pinned = Pinned(
            Fingerprint.of("fake", verdict.failures[0]),
            failing,
            verdict,
            run=partial(judged, lucky),
            budget=ShrinkBudget(runs=500, seconds=60),
            aside=lambda _case, _verdict: None,
        )
        assert ("window" in needs_of(pinned, failing, lambda _: True)) == needs


def test_two_kinds_of_rows_without_keys_that_fail_apart_are_two_causes() -> None:
    def both(case: Case) -> list[tuple[Kind, str]]:
        many = len(lengths(case)) > 1
        wrong = any(kv < q and (kv > 0 or many) and (kv == 0 or not many) for q, kv in lengths(case))
        return [(Kind.EMPTY_ROW, "empty rows")] if wrong else []

    short, empty = (
        Case(backend="fake", geometry=HEADS, steps=(step(Mode.EXTEND, *requests),))
        for requests in ([(4, 1)], [(1, 9), (1, 0)])
    )
    assert not explained(both, short, empty, ("empty KV", "several requests"))
    assert not explained(both, empty, short, ("fewer keys than queries",))


def test_a_case_may_fail_as_another_known_cause_does_without_the_clue() -> None:
    def strides_ignored(case: Case) -> list[tuple[Kind, str]]:
        return [(Kind.NOT_FINITE, "out")] if case.geometry.sinks else []

    def both(case: Case) -> list[tuple[Kind, str]]:
        return [*strides_ignored(case), *rows_without_keys(case)]

    failing, known = one_request(Mode.EXTEND, 3, 2, sinks=True), one_request(Mode.EXTEND, 3, 9, sinks=True)
    assert not explained(both, failing, known, ("sinks",))
    empty = one_request(Mode.EXTEND, 1, 0)
    other = KnownCause(
        name="other",
        case=empty,
        fingerprint=Fingerprint.of("fake", judged(rows_without_keys, empty).failures[0]),
        needs=("empty KV",),
    )
    assert explained(both, failing, known, ("sinks",), beside=(other,))


def test_without_the_clue_the_worst_failure_of_a_case_is_the_known_one() -> None:
    """What a known failure has beside it is not filed, and need not be known."""

    def padding_cleared(case: Case) -> list[tuple[Kind, str]]:
        if not padded(case):
            return []
        if all(kv_len == 0 for _, kv_len in lengths(case)):
            return [(Kind.EMPTY_ROW, "empty rows")] if case.geometry.sinks else []
        return [(Kind.NOT_FINITE, "lse"), (Kind.OUTPUT_MISMATCH, "out")]

    def empty(mode: Mode) -> Case:
        row = step(mode, (1, 0), rows=2, stride=1 if mode.speculative else 0)
        return Case(backend="fake", geometry=replace(HEADS, sinks=True), steps=(row,))

    full = Case(backend="fake", geometry=HEADS, steps=(step(Mode.EXTEND, (1, 5), rows=2),))
    other = KnownCause(
        name="other",
        case=full,
        fingerprint=Fingerprint.of("fake", judged(padding_cleared, full).failures[0]),
        needs=("padding",),
    )
    needs = ("empty KV", "padding", "sinks")
    failing, known = empty(Mode.EXTEND), empty(Mode.CHUNKED_PREFILL)
    assert explained(padding_cleared, failing, known, needs, beside=(other,))
    assert not explained(padding_cleared, failing, known, needs)


def test_a_cause_may_show_in_another_way_without_the_feature_that_lets_a_failure_be_seen() -> None:
    def sinks_dropped(case: Case) -> list[tuple[Kind, str]]:
        if not case.geometry.sinks:
            return []
        empty = all(kv_len == 0 for _, kv_len in lengths(case))
        return [(Kind.EMPTY_ROW, "empty rows") if empty else (Kind.OUTPUT_MISMATCH, "out")]

    known, failing = (one_request(mode, 1, 0, sinks=True) for mode in (Mode.EXTEND, Mode.CHUNKED_PREFILL))
    full = judged(sinks_dropped, one_request(Mode.CHUNKED_PREFILL, 1, 5, sinks=True)).failures[0]
    needs = ("empty KV", "sinks")
    assert explained(sinks_dropped, failing, known, needs, shown_as=(Fingerprint.of("fake", full),))
    assert not explained(sinks_dropped, failing, known, needs)


def test_a_failure_without_the_several_queries_that_its_cause_needs_is_another_s() -> None:
    """One fault is in later rows of a request, one in later requests: both need sinks."""

    def faults(both: bool, case: Case) -> list[tuple[Kind, str]]:
        rows = [q_len for q_len, _ in lengths(case)]
        wrong = max(rows) > 1 or (both and len(rows) > 1)
        return [(Kind.OUTPUT_MISMATCH, "out")] if case.geometry.sinks and wrong else []

    known = one_request(Mode.EXTEND, 2, 5, sinks=True)
    failing = replace(known, steps=(step(Mode.EXTEND, (2, 5), (2, 7)),))
    for both in (True, False):
        assert explained(partial(faults, both), failing, known, ("sinks", "several queries")) is not both


def test_a_fault_is_no_symptom_of_wrong_numbers_that_its_case_has_without_it() -> None:
    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        if not case.geometry.sinks:
            return []
        return [(Kind.ILLEGAL_ACCESS, "k_cache") if case.geometry.soft_cap else (Kind.OUTPUT_MISMATCH, "out")]

    assert not explained(two_faults, featured(sinks=True, soft_cap=30.0), featured(sinks=True), ("sinks",))


def test_a_cause_of_several_queries_explains_no_case_of_one_query() -> None:
    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        several = any(queries > 1 for queries, _ in lengths(case)) or len(lengths(case)) > 1
        return [(Kind.OUTPUT_MISMATCH, "out")] if case.geometry.sinks and several else []

    one = Case(backend="fake", geometry=replace(HEADS, sinks=True), steps=(step(Mode.EXTEND, (1, 5), (1, 9)),))
    known = one_request(Mode.CHUNKED_PREFILL, 3, 6, sinks=True)
    assert not explained(two_faults, one, known, ("sinks", "several queries"))
    assert explained(two_faults, one, known, ("sinks",))


WINDOW = {"window_left": 3}


def empty(case: Case) -> bool:
    return all(kv_len == 0 for _, kv_len in lengths(case))


def windowed(case: Case) -> list[tuple[Kind, str]]:
    if case.geometry.window_left < 0:
        return []
    return [(Kind.EMPTY_ROW, "empty rows") if empty(case) else (Kind.LSE_MISMATCH, "lse")]


def test_a_failure_beside_the_cause_s_own_is_not_explained_by_that_one() -> None:
    """Replays are wrong; padded rows are, too, where the workspace was used before."""

    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        if not any(each.launch is Launch.REPLAY for each in case.steps):
            return []
        stale = [(Kind.NOT_FINITE, "padded rows")] if padded(case) and case.workspace is not Workspace.FRESH else []
        return [*stale, (Kind.OUTPUT_MISMATCH, "out")]

    known = captured(one_request(Mode.DECODE, 1, 5))
    two = Case(backend="fake", geometry=HEADS, steps=(step(Mode.DECODE, (1, 5), rows=2, stride=1),))
    failing = captured(replace(two, workspace=Workspace.REUSED))
    assert known is not None
    assert failing is not None
    assert not explained(two_faults, failing, known, ("replay",))


def test_offsets_beyond_2_31_are_no_memory_that_a_stray_read_meets() -> None:
    def two_faults(case: Case) -> list[tuple[Kind, str]]:
        beyond = [(Kind.ILLEGAL_ACCESS, "k_cache")] if case.pages.hole else []
        return [*beyond, (Kind.OUTPUT_MISMATCH, "out")] if max(kv for _, kv in lengths(case)) > 1 else beyond

    known, failing = one_request(Mode.EXTEND, 1, 5), one_request(Mode.EXTEND, 1, 9)
    failing = replace(failing, pages=Pages(hole=4096))
    assert not explained(two_faults, failing, known, ("several keys",))


def test_features_that_are_no_arguments_are_not_one_cause_in_two_kernels() -> None:
    known = one_request(Mode.EXTEND, 1, 5, **WINDOW)
    assert not explained(windowed, replace(known, backend="other"), known, ("window",))


@pytest.mark.parametrize("mode", [Mode.EXTEND, Mode.DECODE])
def test_another_kind_of_failure_is_not_explained(mode: Mode) -> None:
    """Whether it is the same bug stays undecided."""
    empty = one_request(mode, 1, 0, sinks=True)
    assert not explained(sinks_missing_from_lse, empty, one_request(Mode.EXTEND, 2, 5, sinks=True), ("sinks",))


@pytest.mark.parametrize("strays", [True, False])
def test_a_nan_is_not_explained_by_a_number_without_its_other_clue(*, strays: bool) -> None:
    """It passes by chance without the mark: a second fault reads what lies behind the pages."""

    def faults(case: Case) -> list[tuple[Kind, str]]:
        capped = "soft cap" in names_in(case)
        if "sinks" in names_in(case):
            return [(Kind.NOT_FINITE if capped else Kind.OUTPUT_MISMATCH, "out")]
        return [(Kind.NOT_FINITE, "out")] if strays and capped and case.seed % 8 == 5 else []

    assert not explained(faults, featured(sinks=True, soft_cap=30.0), featured(sinks=True), ("sinks",))
