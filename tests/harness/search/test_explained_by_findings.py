"""A cause predicts a failure by each of its findings, in other kernels too where they misread the same argument."""

import pytest
from explained_causes import Faulty, explained, lengths, one_request, padded
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.reduce.transfers import captured
from attnfuzz.harness.search.known import Showing, several
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.case import Case, Launch, Mode, Pages, Scales, Workspace

WINDOW = {"window_left": 3}


def empty(case: Case) -> bool:
    return all(kv_len == 0 for _, kv_len in lengths(case))


def windowed(case: Case) -> list[tuple[Kind, str]]:
    if case.geometry.window_left < 0:
        return []
    return [(Kind.EMPTY_ROW, "empty rows") if empty(case) else (Kind.LSE_MISMATCH, "lse")]


def test_a_finding_with_other_marks_predicts_where_those_of_the_smallest_case_are_missing() -> None:
    def either(case: Case) -> list[tuple[Kind, str]]:
        return [(Kind.OUTPUT_MISMATCH, "out")] if case.geometry.sinks or case.geometry.soft_cap else []

    known, failing = one_request(Mode.EXTEND, 1, 5, sinks=True), one_request(Mode.DECODE, 1, 5, soft_cap=30.0)
    other = one_request(Mode.EXTEND, 1, 5, soft_cap=30.0)
    assert not explained(either, failing, known, ("sinks",))
    assert explained(either, failing, known, ("sinks",), also=((other, ("soft cap",)),))


def test_rows_with_too_few_keys_show_their_cause_in_the_lse_where_there_are_sinks() -> None:
    def one_key_seen(case: Case) -> list[tuple[Kind, str]]:
        if not any(0 < kv_len < q_len for q_len, kv_len in lengths(case)):
            return []
        return [(Kind.LSE_MISMATCH, "lse") if case.geometry.sinks else (Kind.EMPTY_ROW, "empty rows")]

    known, failing = one_request(Mode.EXTEND, 2, 1), one_request(Mode.CHUNKED_PREFILL, 3, 1, sinks=True)
    assert explained(one_key_seen, failing, known, ("fewer keys than queries",))


@pytest.mark.parametrize(("kind", "same"), [(Kind.INPUT_MUTATED, True), (Kind.NOT_FINITE, False)])
def test_two_kernels_that_overwrite_a_tensor_in_all_cases_have_one_cause(kind: Kind, *, same: bool) -> None:
    decode, extend = one_request(Mode.DECODE, 1, 5), one_request(Mode.EXTEND, 1, 5)
    assert explained(lambda _: [(kind, "query")], decode, extend, ()) is same


def test_a_weight_that_needs_several_keys_in_the_output_shows_in_the_lse_of_one() -> None:
    def weighted(case: Case) -> list[tuple[Kind, str]]:
        alone = all(kv_len < 2 for _, kv_len in lengths(case))
        return [(Kind.LSE_MISMATCH, "lse")] if alone else [(Kind.OUTPUT_MISMATCH, "out"), (Kind.LSE_MISMATCH, "lse")]

    known, failing = one_request(Mode.EXTEND, 1, 2), one_request(Mode.EXTEND, 1, 1)
    assert explained(weighted, failing, known, ("several keys",))


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


def test_a_finding_that_its_clues_only_let_be_seen_predicts_nothing() -> None:
    case = one_request(Mode.DECODE, 1, 5)
    padded_rows, out = (
        Fingerprint("fake", Kind.NOT_FINITE, "decode", "decode", place) for place in ("padded rows", "out")
    )
    seen, marked = (Showing(case=case, fingerprint=each, needs=("replay",)) for each in (padded_rows, out))
    assert several((seen, marked), but=Showing(case=case, fingerprint=out)) == (marked,)


GAPS = {"arguments": (ArgumentForm.LENGTHS_GAPS,)}


def misread(*, elsewhere: bool = True, kinds: tuple[Kind, Kind] = (Kind.NOT_FINITE, Kind.NOT_FINITE)) -> Faulty:
    """Return two kernels that take lengths to be dense, or one and another that needs a window for it."""

    def faulty(case: Case) -> list[tuple[Kind, str]]:
        there = case.backend != "fake"
        if not case.arguments or (there and not elsewhere and case.geometry.window_left < 0):
            return []
        return [(kinds[there], "out")]

    return faulty


@pytest.mark.parametrize("kinds", [(Kind.NOT_FINITE, Kind.NOT_FINITE), (Kind.NOT_FINITE, Kind.ILLEGAL_ACCESS)])
def test_kernels_that_misread_the_same_argument_are_one_cause_of_any_kind(kinds: tuple[Kind, Kind]) -> None:
    known = replace(one_request(Mode.EXTEND, 1, 5), **GAPS)
    failing = replace(one_request(Mode.DECODE, 1, 5, **WINDOW), backend="other", **GAPS)
    assert explained(misread(kinds=kinds), failing, known, ("lengths with gaps",))


def test_a_kernel_that_misreads_an_argument_only_with_another_feature_is_another_cause() -> None:
    known = replace(one_request(Mode.EXTEND, 1, 5), **GAPS)
    failing = replace(one_request(Mode.DECODE, 1, 5, **WINDOW), backend="other", **GAPS)
    assert not explained(misread(elsewhere=False), failing, known, ("lengths with gaps",))


EDGE = ("softmax scale", "softmax scale of 0 or below")
EDGES = tuple(
    replace(one_request(mode, 1, 5), backend=backend, scales=Scales(softmax=0.0))
    for mode, backend in ((Mode.EXTEND, "fake"), (Mode.DECODE, "other"))
)


def zero_scaled(case: Case) -> bool:
    return case.scales.softmax <= 0


def test_an_edge_is_one_cause_in_two_kernels_that_fail_alike() -> None:
    assert explained(lambda case: [(Kind.NOT_FINITE, "out")] if zero_scaled(case) else [], EDGES[1], EDGES[0], EDGE)


def test_an_edge_is_two_causes_in_two_kernels_that_fail_in_two_ways() -> None:
    def two_ways(case: Case) -> list[tuple[Kind, str]]:
        return [(Kind.NOT_FINITE if case.backend == "fake" else Kind.UNWRITTEN, "out")] if zero_scaled(case) else []

    assert not explained(two_ways, EDGES[1], EDGES[0], EDGE)


def test_features_that_are_no_arguments_are_not_one_cause_in_two_kernels() -> None:
    known = one_request(Mode.EXTEND, 1, 5, **WINDOW)
    assert not explained(windowed, replace(known, backend="other"), known, ("window",))
