"""Where modules are compiled for few geometries, the reducer stays among them, and reaches the simplest."""

from collections.abc import Callable

from capabilities import COMPILED, FP8_DECODE, HEAD_DIM_64, HEAD_DIM_128
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.reduce import reduce
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.geometry import KvLayout


def verified(bucket: Bucket, drafts: int, **geometry: object) -> Case:
    """A verify of two requests over a geometry of a bucket, with as many drafts."""
    requests = (Request(0, drafts, 150), Request(1, drafts, drafts))
    step = Step(mode=Mode.TARGET_VERIFY, requests=requests, padded_tokens=2 * drafts, tokens_per_request=drafts)
    case = Case(backend="any", geometry=replace(bucket.simplest, **geometry), steps=(step,))
    assert COMPILED.why_not(case) is None
    return case


def reduced(case: Case, fails: Callable[[Case], bool]) -> Case:
    """The smallest case, out of candidates that are all covered."""

    def covered_and_fails(candidate: Case) -> bool:
        assert COMPILED.why_not(candidate) is None
        return fails(candidate)

    return reduce(case, covered_and_fails, capability=COMPILED)


def test_a_failure_in_any_geometry_is_reduced_to_the_first_bucket() -> None:
    case = reduced(verified(FP8_DECODE, 8, q_heads=64, kv_heads=8, page_size=32), lambda _: True)
    assert case.geometry == HEAD_DIM_64.simplest


def test_a_failure_of_one_bucket_is_reduced_to_its_simplest_geometry() -> None:
    large = verified(FP8_DECODE, 8, q_heads=64, kv_heads=8, page_size=32)
    case = reduced(large, lambda case: case.geometry.kv_dtype is FP8_DECODE.kv_dtype)
    assert case.geometry == FP8_DECODE.simplest


def test_heads_are_dropped_to_a_pair_that_no_halving_leads_to() -> None:
    large = verified(HEAD_DIM_64, 4, q_heads=16, kv_heads=8)
    assert reduced(large, lambda case: case.geometry.kv_heads > 1).geometry.kv_heads == 2


def test_drafts_are_dropped_to_a_number_that_no_halving_leads_to() -> None:
    def fails(case: Case) -> bool:
        return case.geometry.q_heads == 64 and case.steps[0].tokens_per_request > 1

    assert reduced(verified(FP8_DECODE, 8, q_heads=64, kv_heads=8), fails).steps[0].tokens_per_request == 2


def test_a_later_bucket_is_left_with_drafts_that_the_first_has() -> None:
    large = verified(FP8_DECODE, 8)
    case = reduced(large, lambda case: case.steps[0].tokens_per_request > 2)
    assert case.geometry.head_dim_qk == HEAD_DIM_64.head_dim_qk
    assert case.steps[0].tokens_per_request == 4


def test_options_that_a_failure_needs_are_kept() -> None:
    large = verified(HEAD_DIM_128, 5, q_heads=24, kv_heads=8, window_left=15, soft_cap=30.0)

    def fails(case: Case) -> bool:
        return case.geometry.window_left == 15 and case.geometry.head_dim_qk == 128

    case = reduced(large, fails)
    assert case.geometry == replace(HEAD_DIM_128.simplest, window_left=15)


CAN = Capability(modes=(Mode.DECODE,), layouts=tuple(KvLayout), head_dims=(96, 128, 192), unequal_head_dims=True)


def case_of(qk: int, vo: int) -> Case:
    geometry = replace(HEADS, head_dim_qk=qk, head_dim_vo=vo)
    return Case(backend="any", geometry=geometry, steps=(step(Mode.DECODE, (1, 9)),))


def test_the_smallest_listed_head_dim_is_reached() -> None:
    reduced = reduce(case_of(192, 192), CAN.can_run, capability=CAN)
    assert (reduced.geometry.head_dim_qk, reduced.geometry.head_dim_vo) == (96, 96)


def test_each_head_dim_is_reduced_for_itself() -> None:
    reduced = reduce(case_of(192, 128), lambda case: case.geometry.head_dim_qk > 100, capability=CAN)
    assert (reduced.geometry.head_dim_qk, reduced.geometry.head_dim_vo) == (128, 96)
