"""Cases with long KV for calibration: over geometries that the backend has, in the modes that it has there."""

import pytest
from capabilities import COMPILED, COMPILED_LATENTS, FP8_DECODE, HEAD_DIM_64, HEAD_DIM_128
from msgspec.structs import replace

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.calibrate.sample import LENGTHS, long_cases, numerical
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, KvView, Mask, Mode, QueryView, Tombstone
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.features.numbers import families
from attnfuzz.reference.validity import validate

EVERYTHING = Capability(
    windows=True,
    sinks=True,
    soft_cap=True,
    fp8_kv=True,
    kv_scales=True,
    padding=True,
    graph_modes=(Mode.DECODE,),
    masks=tuple(Mask),
    windowed_masks=tuple(Mask),
    query_views=tuple(QueryView),
    kv_views=tuple(KvView),
    tombstones=(Tombstone.NULL,),
)


@pytest.mark.parametrize("can", [EVERYTHING, COMPILED, COMPILED_LATENTS, resolve("trtllm_mha").capability])
def test_features_that_cannot_change_rounding_are_not_drawn_for_a_fit(can: Capability) -> None:
    left = numerical(can, DType.BFLOAT16)
    assert left.dtypes == (DType.BFLOAT16,)
    assert (left.sinks, left.soft_cap, left.kv_scales) == (can.sinks, can.soft_cap, can.kv_scales)
    gone = (left.padding, left.graph_modes, left.arguments, left.edges, left.tombstones, left.takes_empty_kv)
    assert not any((*gone, left.kv_shorter_than_q, left.table_gaps))
    assert left.masks == left.windowed_masks == (Mask.CAUSAL,)
    assert len(left.query_views) == len(left.kv_views) == 1


def made(can: Capability, dtype: DType) -> list[Case]:
    """All long cases, each of them valid and covered."""
    cases = list(long_cases("any", can, dtype, seed=7))
    for case in cases:
        validate(case)
        assert can.why_not(case) is None
    return cases


@pytest.mark.parametrize("can", [resolve("trtllm_mha").capability, COMPILED, COMPILED_LATENTS])
def test_each_length_is_tried_with_each_family_of_values(can: Capability) -> None:
    cases = made(can, DType.BFLOAT16)
    assert [(case.steps[0].requests[0].kv_len, case.values) for case in cases] == [
        (length, family) for length in LENGTHS for family in families(can)
    ]
    assert all([step.mode for step in case.steps] == [Mode.DECODE, Mode.EXTEND] for case in cases)


def test_a_geometry_with_modules_is_taken() -> None:
    assert {case.geometry for case in made(COMPILED, DType.BFLOAT16)} == {HEAD_DIM_64.simplest}


def test_where_only_decode_is_compiled_there_is_only_decode() -> None:
    cases = made(COMPILED, DType.FLOAT16)
    assert {case.geometry for case in cases} == {FP8_DECODE.simplest}
    assert {step.mode for case in cases for step in case.steps} == {Mode.DECODE}


def test_a_window_that_hides_all_but_a_few_keys_is_no_long_case() -> None:
    assert made(replace(COMPILED, buckets=(HEAD_DIM_128,)), DType.BFLOAT16) == []
