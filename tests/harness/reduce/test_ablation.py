"""Which features a failure needs, and where else its case can be run."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from repetition import examples
from small_cases import HEADS, LATENTS, drawn, step

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.reduce.ablation import CLUES, FEATURES, ablations, features_in, needed
from attnfuzz.harness.reduce.search import reduce
from attnfuzz.harness.reduce.transfers import captured, in_mode, with_few_keys
from attnfuzz.reference.case import (
    SPECULATIVE,
    Case,
    Launch,
    Mask,
    Mode,
    Outputs,
    PageOrder,
    Pages,
    Request,
    Scales,
    Step,
    Unused,
    ValueFamily,
    Workspace,
)
from attnfuzz.reference.case_file import possible
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.related import related
from attnfuzz.reference.relation import Relation
from attnfuzz.reference.serving import Interleave, ServedQueries, SharedKeys
from attnfuzz.reference.sparse.case import SparseCase, SparseMode, SparseOp, SparseRequest, SparseStep

CAPTURE = step(Mode.TARGET_VERIFY, stride=2, rows=3, launch=Launch.CAPTURE)
REPLAY = step(Mode.TARGET_VERIFY, (2, 9), (2, 2), stride=2, rows=3, launch=Launch.REPLAY)
CASE = Case(
    backend="any",
    geometry=replace(
        HEADS, window_left=3, sinks=True, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT16, head_dim_qk=40, head_dim_vo=40
    ),
    steps=(step(Mode.EXTEND, (3, 3), (2, 0)), CAPTURE, REPLAY),
    pages=Pages(order=PageOrder.SHUFFLED),
    scales=Scales(softmax=0.5),
    workspace=Workspace.DIRTY,
)


def names(case: Case, fails: Callable[[Case], bool]) -> set[str]:
    return {feature.name for feature in needed(case, fails)}


def padded(case: Case) -> bool:
    return any(each.padded_batch > len(each.requests) for each in case.steps if each.requests)


@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        (lambda case: case.geometry.sinks, {"sinks"}),
        (lambda case: case.geometry.sinks and case.workspace is Workspace.DIRTY, {"sinks", "used workspace"}),
        (lambda case: any(each.launch is Launch.REPLAY for each in case.steps), {"replay"}),
        (padded, {"padding"}),
        (lambda case: sum(each.launch is not Launch.CAPTURE for each in case.steps) > 1, {"several steps"}),
        (lambda case: any(each.kv_len == 0 for each in case.steps[0].requests), {"empty KV"}),
        (lambda case: any(len(each.requests) > 1 for each in case.steps), {"several requests"}),
        (lambda case: case.pages.behind is Unused.NAN, {"NaN behind the last key"}),
        (lambda case: case.pages.free is Unused.NAN and case.geometry.sinks, {"NaN in free pages", "sinks"}),
        (lambda case: case.outputs is Outputs.POISONED, {"NaN in outputs"}),
        (lambda case: case.geometry.dtype is not DType.FLOAT32, {"16 bits"}),
        (lambda case: case.geometry.head_dim_vo % 16 > 0, {"a head dim that is no multiple of 16"}),
        (lambda _: True, set()),
    ],
)
def test_a_feature_is_needed_if_the_case_passes_without_it(fails: Callable[[Case], bool], expected: set[str]) -> None:
    assert names(CASE, fails) == expected


@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        (lambda each: each.geometry.page_size < longest(each), {"several pages", "several keys"}),
        (lambda each: longest(each) > 1, {"several keys"}),
        (lambda each: longest(each) > 64, {"more than 64 keys", "several keys"}),
        (lambda each: longest(each) % each.geometry.page_size > 0, {"partly filled page"}),
        (lambda each: max(request.q_len for request in each.steps[0].requests) > 1, {"several queries"}),
        (lambda _: True, set()),
    ],
)
def test_pages_keys_and_queries_are_needed_by_themselves(fails: Callable[[Case], bool], expected: set[str]) -> None:
    case = Case(backend="any", geometry=HEADS, steps=(step(Mode.EXTEND, (3, 70)),))
    assert names(case, fails) == expected


def some_page_full(case: Case) -> bool:
    return any(kv_len and not kv_len % case.geometry.page_size for kv_len in case.slot_lengths().values())


@pytest.mark.parametrize(
    ("page_size", "kv_len", "q_len"), [(4, 8, 1), (4, 4, 4), (1, 3, 1), (1, 1, 1), (2, 12, 3), (64, 64, 1)]
)
def test_a_full_last_page_is_needed_whatever_the_size_of_pages(page_size: int, kv_len: int, q_len: int) -> None:
    case = Case(
        backend="any", geometry=replace(HEADS, page_size=page_size), steps=(step(Mode.EXTEND, (q_len, kv_len)),)
    )
    assert "full last page" in names(case, some_page_full)
    assert "full last page" not in names(case, lambda each: any(map(has_keys_for_all_queries, each.steps)))


def has_keys_for_all_queries(each: Step) -> bool:
    return all(request.kv_len >= request.q_len for request in each.requests)


def test_several_pages_are_not_mistaken_for_a_full_one() -> None:
    """Any number of keys fills pages of one token."""
    case = Case(backend="any", geometry=replace(HEADS, page_size=1), steps=(step(Mode.EXTEND, (1, 3)),))
    assert names(case, lambda each: longest(each) > each.geometry.page_size) == {"several pages", "several keys"}


def test_a_scale_that_goes_with_the_head_dim_is_no_rest_of_a_vector() -> None:
    """A scale that is rounded to bf16 is exact at 16, not at 8 and 32."""
    case = Case(
        backend="any", geometry=replace(HEADS, head_dim_qk=8, head_dim_vo=8), steps=(step(Mode.EXTEND, (1, 3)),)
    )
    assert names(case, lambda each: not (each.geometry.head_dim_qk**0.5).is_integer()) == set()


def longest(case: Case) -> int:
    return max(case.slot_lengths().values())


def test_padding_inside_of_a_graph_s_request_can_be_taken_out() -> None:
    capture = step(Mode.DRAFT_EXTEND, rows=2, stride=2, launch=Launch.CAPTURE)
    replay = step(Mode.DRAFT_EXTEND, (1, 2), rows=2, stride=2, launch=Launch.REPLAY)
    case = Case(backend="any", geometry=HEADS, steps=(capture, replay))
    assert names(case, padded) == {"padding", "replay"}


def test_the_rows_of_an_idle_step_are_padding() -> None:
    case = Case(backend="any", geometry=HEADS, steps=(step(Mode.EXTEND, (3, 3)), step(Mode.EXTEND, rows=1)))
    failing = names(case, lambda each: any(not step.requests and step.padded_tokens for step in each.steps))
    assert failing == {"padding", "idle step", "several steps"}


def test_a_failure_of_the_related_run_alone_needs_no_relation() -> None:
    enlarged = replace(drawn_extend(), relation=Relation.PADDING_ENLARGED)

    def fails(case: Case) -> bool:
        return padded(case if case.relation is None else related(case).case)

    assert fails(enlarged)
    assert "relation" not in names(enlarged, fails)


def drawn_extend() -> Case:
    return replace(CASE, steps=(step(Mode.DRAFT_EXTEND_V2, (1, 9), stride=1, rows=1),), workspace=Workspace.FRESH)


def test_a_window_is_tried_without_effect_too() -> None:
    def cut_off(case: Case) -> bool:
        return 0 <= case.geometry.window_left < 9

    assert names(CASE, cut_off) == {"window", "keys outside of the window"}
    assert names(CASE, lambda case: case.geometry.window_left >= 0) == {"window"}


def test_a_first_step_that_fails_needs_no_others() -> None:
    several = replace(CASE, steps=(step(Mode.EXTEND, (3, 3)), *(step(Mode.DECODE, (1, 3 + n)) for n in range(1, 9))))
    assert not names(several, lambda case: case.steps[0].mode is Mode.EXTEND)


def test_numbers_in_unused_memory_are_tried_with_values_that_differ_from_each_other() -> None:
    """One key too many does not show if all keys are equal."""

    def a_key_too_many(case: Case) -> bool:
        return case.pages.behind is Unused.NAN or case.values is not ValueFamily.CONSTANT

    assert not names(CASE, a_key_too_many)
    assert "NaN behind the last key" not in names(replace(CASE, values=ValueFamily.CONSTANT), a_key_too_many)


def test_offsets_beyond_2_31_are_a_clue() -> None:
    far = replace(CASE, pages=replace(CASE.pages, hole=2**31 // 8))
    assert names(far, lambda case: case.pages.hole > 0) == {"offsets beyond 2^31"}
    assert FEATURES["offsets beyond 2^31"] in CLUES


def test_a_variant_that_passes_by_chance_is_tried_with_other_values() -> None:
    def lucky(case: Case) -> bool:
        return case.geometry.sinks or case.seed == 2

    assert not needed(CASE, lucky)
    assert {feature.name for feature in needed(CASE, lucky, runs=lambda _: 2)} == {"sinks"}


def test_a_feature_is_not_needed_if_no_number_of_runs_would_show_it() -> None:
    assert {feature.name for feature in needed(CASE, lambda case: case.geometry.sinks)} == {"sinks"}
    assert not needed(CASE, lambda case: case.geometry.sinks, runs=lambda _: 0)


def test_without_16_bits_an_fp8_cache_stays_one() -> None:
    fp8 = replace(CASE, geometry=replace(CASE.geometry, kv_dtype=DType.FLOAT8_E4M3))
    for case, kv_dtype in ((CASE, DType.FLOAT32), (fp8, DType.FLOAT8_E4M3)):
        ((_, (variant,)),) = ablations(case, among=(FEATURES["16 bits"],))
        assert (variant.geometry.dtype, variant.geometry.kv_dtype) == (DType.FLOAT32, kv_dtype)


@pytest.mark.parametrize(
    ("fails", "expected", "smallest"),
    [
        (lambda case: case.queries.scale != 1, {"query scale"}, ServedQueries(scale=2.0)),
        (lambda case: case.queries.kept, {"kept queries", "fp8 KV"}, ServedQueries(kept=True)),
        (lambda case: case.geometry.q_heads == 4, set(), ServedQueries()),
    ],
)
def test_the_queries_of_a_server_are_clues_and_shrink_to_the_default(
    fails: Callable[[Case], bool], expected: set[str], smallest: ServedQueries
) -> None:
    geometry = replace(HEADS, dtype=DType.BFLOAT16, kv_dtype=DType.FLOAT8_E4M3)
    case = Case(
        backend="any",
        geometry=geometry,
        steps=(step(Mode.EXTEND, (3, 3), (2, 5)),),
        queries=ServedQueries(scale=2.0, kept=True),
    )
    assert names(case, fails) & {"query scale", "kept queries", "fp8 KV"} == expected
    assert reduce(case, fails).queries == smallest


@pytest.mark.parametrize(
    ("feature", "smallest"),
    [
        ("four ranks", SharedKeys(ranks=4)),
        ("interleave", SharedKeys(interleave=Interleave.PAGE)),
        ("all to all", SharedKeys(all_to_all=True)),
    ],
)
def test_the_ranks_that_share_keys_are_clues_and_shrink_to_the_default(feature: str, smallest: SharedKeys) -> None:
    def fails(case: Case) -> bool:
        return replace(case, shared_keys=SharedKeys()) != case and FEATURES[feature] in features_in(case)

    shared = SharedKeys(ranks=4, interleave=Interleave.PAGE, all_to_all=True)
    case = Case(backend="any", geometry=HEADS, steps=(step(Mode.EXTEND, (3, 3), (2, 5)),), shared_keys=shared)
    assert names(case, fails) & {"four ranks", "interleave", "all to all"} == {feature}
    assert reduce(case, fails).shared_keys == smallest


def test_features_that_a_backend_can_not_do_without_are_left_out() -> None:
    found = {each.feature.name for each in ablations(CASE, allowed=lambda case: case.geometry.sinks)}
    assert "sinks" not in found
    assert "padding" in found


def test_features_to_look_at_can_be_chosen() -> None:
    assert not needed(CASE, lambda case: case.geometry.sinks, among=(FEATURES["padding"],))


@pytest.mark.slow
@examples(20, 150)
@pytest.mark.parametrize("backend", ["trtllm_mha", "trtllm_mla"])
def test_variants_can_exist_and_lack_the_feature(backend: str, count: int) -> None:
    capability = resolve(backend).capability
    seen = set()
    for case in drawn(backend, count):
        for feature, variants in ablations(case, allowed=lambda each: capability.why_not(each) is None):
            assert feature in features_in(case)
            for variant in variants:
                assert possible(variant)
                assert feature not in features_in(variant)
            seen.add(feature)
    assert len(seen & CLUES) > 20


@pytest.mark.parametrize("mode", Mode.of_kernels())
@pytest.mark.parametrize("geometry", [HEADS, LATENTS])
def test_a_mode_is_entered_over_the_same_prefixes(mode: Mode, geometry: object) -> None:
    case = replace(CASE, geometry=geometry, steps=(step(Mode.TARGET_VERIFY, (2, 9), (2, 2), stride=2),))
    (moved,) = in_mode(case, mode).steps
    assert moved.mode is mode
    assert [each.kv_len - each.q_len for each in moved.requests] == [7, 0]
    assert possible(replace(case, steps=(moved,)))


@pytest.mark.parametrize(
    ("mode", "replays"), [*((each, False) for each in Mode.of_kernels()), *((each, True) for each in SPECULATIVE)]
)
def test_requests_have_fewer_keys_than_queries_in_all_modes_but_decode(mode: Mode, *, replays: bool) -> None:
    case = in_mode(replace(CASE, geometry=HEADS, steps=(step(Mode.EXTEND, (1, 9), (1, 0)),)), mode)
    few = with_few_keys((captured(case) or case) if replays else case)
    assert possible(few)
    assert (FEATURES["replay"] in features_in(few)) is replays
    assert (FEATURES["fewer keys than queries"] in features_in(few)) is (mode is not Mode.DECODE)


def test_an_extend_becomes_a_graph_s_mode_at_the_stride_of_its_longest_request() -> None:
    case = Case(backend="any", geometry=HEADS, steps=(step(Mode.EXTEND, (3, 8), (1, 5)),))
    assert in_mode(case, Mode.TARGET_VERIFY).steps[0].requests == (Request(0, 3, 8), Request(1, 3, 7))
    assert captured(case) is None
    replayed = captured(in_mode(case, Mode.TARGET_VERIFY))
    assert replayed is not None
    assert [each.launch for each in replayed.steps] == [Launch.CAPTURE, Launch.REPLAY]


def test_a_window_of_one_key_is_widened_to_one_that_still_cuts_keys_off() -> None:
    case = Case(backend="any", geometry=replace(HEADS, window_left=0), steps=(step(Mode.EXTEND, (1, 2)),))
    found = names(case, lambda each: 0 <= each.geometry.window_left < max(each.slot_lengths().values()) - 1)
    assert found == {"window", "several keys"}


def test_requests_of_equal_length_have_as_few_keys_as_before() -> None:
    case = Case(backend="any", geometry=HEADS, steps=(step(Mode.EXTEND, (3, 2), (5, 9)),))
    short = names(case, lambda each: any(0 < each.kv_len < each.q_len for step in each.steps for each in step.requests))
    assert short == {"fewer keys than queries", "several queries"}


def test_sinks_are_not_needed_where_a_second_key_shows_the_failure_too() -> None:
    case = Case(backend="any", geometry=replace(HEADS, sinks=True), steps=(step(Mode.EXTEND, (1, 1)),))
    assert not names(case, lambda each: each.geometry.sinks or max(each.slot_lengths().values()) > 1)
    assert names(case, lambda each: each.geometry.sinks) == {"sinks"}


MASKED = Case(backend="any", geometry=HEADS, steps=(step(Mode.TARGET_VERIFY, (3, 9), stride=3),), mask=Mask.EMPTY_ROWS)


@pytest.mark.parametrize(
    ("fails", "expected"),
    [
        (lambda case: case.mask is not Mask.CAUSAL, {"mask"}),
        (lambda case: case.mask not in (Mask.CAUSAL, Mask.FULL), {"mask", "mask with holes"}),
        (
            lambda case: case.mask is Mask.EMPTY_ROWS,
            {"mask", "mask with holes", "rows that a mask hides all keys from"},
        ),
    ],
)
def test_a_failure_needs_a_mask_holes_in_it_or_rows_without_keys(
    fails: Callable[[Case], bool], expected: set[str]
) -> None:
    assert names(MASKED, fails) == expected


def test_a_mask_is_reduced_to_the_plainest_that_fails() -> None:
    def fails(case: Case) -> bool:
        return case.mask in (Mask.CUSTOM, Mask.EMPTY_ROWS)

    assert reduce(MASKED, fails).mask is Mask.CUSTOM
    assert reduce(MASKED, lambda case: case.mask is not Mask.CAUSAL).mask is Mask.FULL


def test_a_feature_of_another_family_with_the_same_name_is_removed_as_the_own_family_removes_it() -> None:
    idle, verify = (
        SparseStep(mode=SparseMode.IDLE, padding=1),
        SparseStep(mode=SparseMode.VERIFY, requests=(SparseRequest(3, 9),)),
    )
    case = SparseCase(backend="any", ops=(SparseOp.TOP_K,), steps=(idle, verify))
    ((feature, variants),) = ablations(case, among={FEATURES["several queries"]})
    assert feature.name == "several queries"
    # The mode stays if it can: a failure elsewhere is another one. Steps without requests have no query.
    assert [variant.modes for variant in variants] == [("idle", "verify"), ("idle", "decode")]
