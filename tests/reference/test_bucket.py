"""What a bucket covers, what it says of the rest, and what a capability with buckets says of a case."""

import re

import pytest
from capabilities import COMPILED, FP8_DECODE, HEAD_DIM_64, HEAD_DIM_128
from msgspec.structs import replace

from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout, Latent
from attnfuzz.reference.relation import Relation


def verified(geometry: Geometry, drafts: int) -> Case:
    """A verify of two requests."""
    requests = (Request(0, drafts, 9 + drafts), Request(1, drafts, 40))
    step = Step(mode=Mode.TARGET_VERIFY, requests=requests, padded_tokens=2 * drafts, tokens_per_request=drafts)
    return Case(backend="any", geometry=geometry, steps=(step,))


@pytest.mark.parametrize("bucket", COMPILED.buckets)
def test_the_simplest_geometry_of_a_bucket_is_covered(bucket: Bucket) -> None:
    assert bucket.covers(bucket.simplest)
    assert bucket.differences(bucket.simplest) == ()


@pytest.mark.parametrize(
    ("change", "asked", "there"),
    [
        ({"head_dim_qk": 80, "head_dim_vo": 80}, "head dims 80 and 80", "head dims 64 and 64"),
        (
            {"q_heads": 8},
            "8 query heads on 1 KV heads",
            "2 query heads on 1 KV heads or 4 query heads on 2 KV heads or 16 query heads on 8 KV heads",
        ),
        ({"page_size": 32}, "page size 32", "page size 16 or page size 64"),
        ({"dtype": DType.FLOAT16}, "float16 queries", "bfloat16 queries"),
        ({"kv_dtype": DType.FLOAT8_E4M3}, "a float8_e4m3fn KV cache", "a bfloat16 KV cache"),
        ({"window_left": 7}, "a window of 8 keys", "no window"),
        ({"soft_cap": 30.0}, "a soft cap of 30", "no soft cap"),
        ({"latent": Latent(rank=48, rope=16)}, "latents of 48 + 16", "no latents"),
    ],
)
def test_differences_from_a_bucket_are_named(change: dict[str, object], asked: str, there: str) -> None:
    geometry = replace(HEAD_DIM_64.simplest, **change)
    assert not HEAD_DIM_64.covers(geometry)
    assert HEAD_DIM_64.differences(geometry) == ((asked, there),)


def test_layouts_and_sinks_are_described_in_words() -> None:
    geometry = replace(HEAD_DIM_128.simplest, kv_layout=KvLayout.NHD, sinks=True)
    assert HEAD_DIM_128.differences(geometry) == (
        ("KV layout NHD", "KV layout HND"),
        ("attention sinks", "no attention sinks"),
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"heads": ()}, "a bucket without heads covers nothing"),
        ({"page_sizes": ()}, "a bucket without page_sizes covers nothing"),
        ({"heads": ((3, 2),)}, "a bucket has 3 query heads for 2 KV heads"),
        ({"strides": (1, 4)}, "1 is always covered"),
        ({"latent": Latent()}, "the head dims of a bucket with Latent"),
    ],
)
def test_a_bucket_that_makes_no_sense_is_refused(change: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        replace(replace(HEAD_DIM_64, heads=((2, 1),)), **change)


def test_a_capability_is_the_union_of_its_buckets() -> None:
    assert COMPILED.dtypes == (DType.BFLOAT16, DType.FLOAT16)
    assert COMPILED.page_sizes == (16, 32, 64)
    assert COMPILED.layouts == (KvLayout.HND, KvLayout.NHD)
    assert (COMPILED.max_head_dim, COMPILED.latent, COMPILED.unequal_head_dims) == (128, False, False)
    assert COMPILED.fp8_kv
    assert COMPILED.windows
    assert COMPILED.sinks
    assert COMPILED.soft_cap


def test_fields_of_geometries_beside_buckets_are_ignored() -> None:
    can = Capability(modes=(Mode.DECODE,), buckets=(HEAD_DIM_64,), page_sizes=(1,), windows=True, fp8_kv=True)
    assert (can.page_sizes, can.windows, can.fp8_kv) == ((16, 64), False, False)


def test_buckets_with_and_without_latents_are_refused_together() -> None:
    latent = replace(HEAD_DIM_64, heads=((2, 1),), head_dim_qk=576, head_dim_vo=512, latent=Latent())
    with pytest.raises(ValueError, match="make two backends of them"):
        Capability(modes=(Mode.DECODE,), buckets=(HEAD_DIM_64, latent))


def test_a_bucket_for_none_of_the_modes_is_refused() -> None:
    with pytest.raises(ValueError, match="a bucket has modules for none of the modes extend"):
        Capability(modes=(Mode.EXTEND,), buckets=(HEAD_DIM_64, FP8_DECODE))


def test_a_geometry_outside_of_all_buckets_is_compared_to_the_nearest() -> None:
    geometry = replace(FP8_DECODE.simplest, page_size=64)
    assert COMPILED.why_not(verified(geometry, 2)) == (
        "page size 64 (no module is compiled for that, the nearest is for page size 16 or page size 32)"
    )


def test_features_of_different_buckets_are_not_combined() -> None:
    geometry = replace(HEAD_DIM_64.simplest, window_left=127)
    assert COMPILED.why_not(verified(geometry, 4)) == (
        "a window of 128 keys (no module is compiled for that, the nearest is for no window)"
    )


def test_a_number_of_drafts_without_a_module_is_refused() -> None:
    assert COMPILED.why_not(verified(HEAD_DIM_64.simplest, 4)) is None
    assert COMPILED.why_not(verified(HEAD_DIM_64.simplest, 1)) is None
    assert COMPILED.why_not(verified(HEAD_DIM_128.simplest, 7)) is None
    assert COMPILED.why_not(verified(HEAD_DIM_64.simplest, 5)) == "5 draft tokens (it has modules for 4)"


def test_a_mode_without_a_module_is_refused() -> None:
    step = Step(mode=Mode.EXTEND, requests=(Request(0, 3, 9),), padded_tokens=3)
    case = replace(verified(FP8_DECODE.simplest, 2), steps=(step,))
    assert COMPILED.why_not(case) == "mode extend over this geometry (it has modules for decode, target_verify)"


def test_a_step_is_covered_if_any_bucket_of_its_geometry_has_modules_for_it() -> None:
    can = replace(COMPILED, buckets=(*COMPILED.buckets, replace(HEAD_DIM_64, strides=(6,))))
    assert can.why_not(verified(HEAD_DIM_64.simplest, 6)) is None
    assert can.why_not(verified(HEAD_DIM_64.simplest, 5)) == "5 draft tokens (it has modules for 4)"


def test_the_other_case_of_a_relation_is_covered_by_the_same_bucket() -> None:
    for relation in (Relation.REQUEST_APPENDED, Relation.PADDING_ENLARGED, Relation.BATCH_PERMUTED):
        assert COMPILED.why_not(replace(verified(HEAD_DIM_64.simplest, 4), relation=relation)) is None
