"""Capabilities: what they rule out, in words that fit into a sentence, and values that make no sense."""

from typing import Any

import pytest
from capabilities import HEAD_DIM_64
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Granularity, KvView, Launch, Mode, Pace, QueryView, Scales, Views
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout, Latent
from attnfuzz.reference.relation import Relation
from attnfuzz.reference.serving import Interleave, ServedQueries, Serving, SharedKeys

DECODE = step(Mode.DECODE, (1, 9), (1, 3))
CASE = Case(backend="mine", geometry=HEADS, steps=(DECODE,))
FP8 = DType.FLOAT8_E4M3
LATENT = Latent(rank=16, rope=8, nope=8, vo=8)


def with_geometry(**changed: Any) -> Case:
    return replace(CASE, geometry=replace(HEADS, **changed))


def why_not(case: Case, **fields: Any) -> str | None:
    return Capability(**{"layouts": tuple(KvLayout), **fields}).why_not(case)


@pytest.mark.parametrize(
    ("fields", "case", "reason"),
    [
        ({"dtypes": (DType.BFLOAT16,)}, with_geometry(dtype=DType.FLOAT16, kv_dtype=DType.FLOAT16), "float16 queries"),
        ({}, with_geometry(kv_dtype=FP8), "a float8_e4m3fn KV cache under float32 queries"),
        (
            {},
            with_geometry(latent=LATENT, kv_heads=1, head_dim_qk=24, head_dim_vo=16),
            "multi-head latent attention",
        ),
        ({"latent": True}, CASE, "attention without latents"),
        ({"max_head_dim": 8}, CASE, "head dims above 8"),
        ({"head_dims": (64, 128)}, CASE, "head dims other than 64, 128"),
        ({}, with_geometry(head_dim_vo=8), "head dims of K and V that differ"),
        ({"page_sizes": (16,)}, CASE, "page size 4"),
        ({"layouts": (KvLayout.NHD,)}, CASE, "KV layout HND"),
        ({}, with_geometry(window_left=3), "a sliding window"),
        ({}, with_geometry(sinks=True), "attention sinks"),
        ({}, replace(CASE, serving=Serving(budget=4)), "limits of a server that schedules requests itself"),
        (
            {"schedules": True},
            replace(CASE, relation=Relation.SAME_CALL),
            "relations between forwards that it chooses itself",
        ),
        ({}, with_geometry(soft_cap=5.0), "a logit soft cap"),
        ({}, replace(CASE, scales=Scales(k=0.5)), "KV scales other than 1"),
        ({"kv_scales": (FP8,)}, replace(CASE, scales=Scales(v=0.5)), "scales of a float32 KV cache"),
        (
            {"fp8_kv": True},
            replace(with_geometry(kv_dtype=FP8), scales=Scales(granularity=Granularity.TOKEN_HEAD)),
            "scales per token and head",
        ),
        (
            {"fp8_kv": True, "granularities": (Granularity.HEAD,)},
            with_geometry(kv_dtype=FP8),
            "scales per tensor",
        ),
        ({}, replace(CASE, queries=ServedQueries(scale=0.5)), "a scale of queries"),
        ({}, replace(CASE, shared_keys=SharedKeys(all_to_all=True)), "keys that ranks share"),
        ({"shared_keys": (2,)}, replace(CASE, shared_keys=SharedKeys(ranks=4)), "keys that 4 ranks share"),
        ({"shared_keys": (2, 3)}, replace(CASE, shared_keys=SharedKeys(ranks=3)), "4 query heads on 3 ranks"),
        (
            {"shared_keys": (2,)},
            replace(
                CASE,
                steps=(step(Mode.TARGET_VERIFY, (2, 9), stride=2),),
                shared_keys=SharedKeys(interleave=Interleave.PAGE),
            ),
            "an interleave of a page with drafts",
        ),
        (
            {"buckets": (HEAD_DIM_64,), "shared_keys": (2, 4), "most_programs": 128},
            Case(
                backend="mine",
                geometry=HEAD_DIM_64.simplest,
                steps=(step(Mode.DECODE, *[(1, 9)] * 33),),
            ),
            "steps of more than 128 rows times query heads and ranks",
        ),
        (
            {"fp8_kv": True},
            replace(with_geometry(kv_dtype=FP8), queries=ServedQueries(kept=True)),
            "unquantised queries with a quantised KV cache",
        ),
        ({}, replace(CASE, views=Views(query=QueryView.HEAD_GAP)), "query view head_gap"),
        ({}, replace(CASE, views=Views(kv=KvView.PAIRED)), "KV view paired"),
        ({"table_gaps": False}, replace(CASE, views=Views(table_gap=1)), "gaps between the rows of a page table"),
        ({}, replace(CASE, pace=Pace.LATE), "a device that runs behind the host"),
        ({"modes": (Mode.EXTEND,)}, CASE, "mode decode"),
        ({}, replace(CASE, steps=(replace(DECODE, launch=Launch.REPLAY),)), "graphs of mode decode"),
        ({}, replace(CASE, steps=(step(Mode.DECODE, (1, 9), rows=2),)), "padded batches"),
        (
            {"empty_kv": False},
            replace(CASE, steps=(step(Mode.DECODE, (1, 0)),)),
            "queries of a request without KV",
        ),
        (
            {"kv_shorter_than_q": False},
            replace(CASE, steps=(step(Mode.EXTEND, (4, 2)),)),
            "a request with fewer keys than queries",
        ),
        (
            {"kv_shorter_than_q": False},
            replace(CASE, steps=(step(Mode.DECODE, (1, 0)),)),
            "queries of a request without KV",
        ),
        (
            {"buckets": (HEAD_DIM_64,)},
            with_geometry(
                head_dim_qk=64,
                head_dim_vo=64,
                q_heads=2,
                kv_heads=1,
                page_size=8,
                dtype=DType.BFLOAT16,
                kv_dtype=DType.BFLOAT16,
            ),
            "page size 8 (no module is compiled for that, the nearest is for page size 16 or page size 64)",
        ),
        (
            {},
            replace(CASE, relation=Relation.PADDING_ENLARGED),
            "padded batches (in its related run: padding enlarged)",
        ),
    ],
)
def test_a_reason_completes_the_sentence_that_a_backend_does_not_support_it(
    fields: dict[str, Any], case: Case, reason: str
) -> None:
    assert why_not(case, **fields) == reason


def test_requests_may_have_no_keys_though_not_fewer_than_queries() -> None:
    keyless = replace(CASE, steps=(step(Mode.DECODE, (1, 0)),))
    assert why_not(keyless) is None
    assert why_not(keyless, empty_kv=True, kv_shorter_than_q=False) is None
    assert why_not(keyless, empty_kv=False) is not None


def test_only_listed_head_dims_are_covered() -> None:
    def supported(qk: int, vo: int, **fields: Any) -> bool:
        return why_not(with_geometry(head_dim_qk=qk, head_dim_vo=vo), **fields) is None

    assert supported(80, 80, head_dims=(80,))
    assert not supported(64, 64, head_dims=(80,))
    assert supported(192, 128, head_dims=(128, 192), unequal_head_dims=True)
    assert not supported(192, 64, head_dims=(128, 192), unequal_head_dims=True)
    # The list wins over a bound that is given beside it.
    assert Capability(modes=(Mode.DECODE,), head_dims=(64, 512), max_head_dim=128).max_head_dim == 512


def test_scales_can_be_those_of_quantised_caches_alone() -> None:
    can = Capability(layouts=tuple(KvLayout), fp8_kv=True, kv_scales=(FP8,))
    scaled = replace(CASE, scales=Scales(k=0.5, v=1.7))
    assert can.why_not(scaled) is not None
    assert can.why_not(replace(scaled, geometry=replace(HEADS, kv_dtype=FP8))) is None
    assert replace(can, kv_scales=True).why_not(scaled) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"patience": 0.0}, "a patience of 0.0: give a positive number, 1 is 30 s"),
        ({"patience": float("nan")}, "a patience of nan"),
        ({"sinks_dtype": FP8}, "sinks in float8_e4m3fn: give one of float32, bfloat16, float16, or None"),
        ({"kept_queries": True}, "kept_queries is for quantised caches without latents: set fp8_kv=True"),
        ({"head_dims": (64,), "latent": True}, "head_dims are those of a backend without latents"),
        ({"most_programs": 64}, "most_programs is for a backend with buckets and shared_keys"),
        (
            {"most_programs": 15, "buckets": (HEAD_DIM_64,), "shared_keys": (2, 4)},
            "most_programs must allow two drafts of each bucket's heads on all ranks",
        ),
    ],
)
def test_a_capability_that_makes_no_sense_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Capability(modes=(Mode.DECODE,), **fields)


def test_buckets_replace_every_field_about_geometries() -> None:
    can = Capability(modes=(Mode.DECODE,), buckets=(HEAD_DIM_64,), head_dims=(8,))
    assert (can.head_dims, can.max_head_dim) == ((64,), 64)
    assert can.can_run(Case(backend="mine", geometry=HEAD_DIM_64.simplest, steps=(DECODE,)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"always": ("windw",)}, "always: unknown feature 'windw': did you mean 'window'"),
        ({"never": ("nothing like it",)}, "never: unknown feature 'nothing like it': the words are in docs/"),
        ({"always": ("window",)}, "window: the backend does not have windows"),
        ({"never": ("layout=NHD",)}, "without layout=NHD, no layout is left"),
        ({"always": "window"}, "always is 'window': give a tuple of"),
    ],
)
def test_words_that_no_case_can_obey_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Capability(**fields)


def test_a_case_without_the_features_of_always_is_not_supported() -> None:
    can = {"windows": True, "always": ("window",), "never": ("sinks",), "sinks": True}
    assert why_not(CASE, **can) == "cases without window"
    assert why_not(with_geometry(window_left=3), **can) is None
    assert why_not(with_geometry(window_left=3, sinks=True), **can) == "cases with sinks"
