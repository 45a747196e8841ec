"""Every rule of a case is enforced, with a message that names the field, its value and what is legal."""

from typing import Any

import pytest
from msgspec.structs import replace

from attnfuzz.reference.case import (
    BlockScales,
    Case,
    Granularity,
    KvView,
    Launch,
    Mode,
    Pages,
    Request,
    Scales,
    Step,
    TableTail,
    Views,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, Latent
from attnfuzz.reference.past import PastFailure
from attnfuzz.reference.serving import ServedQueries
from attnfuzz.reference.validity import ImpossibleCase, products, validate

GEOMETRY = Geometry(q_heads=4, kv_heads=2, head_dim_qk=64, head_dim_vo=64, page_size=16)
LATENT = Geometry(q_heads=4, kv_heads=1, head_dim_qk=40, head_dim_vo=32, page_size=16, latent=Latent(32, 8, 16, 16))
FP8 = replace(GEOMETRY, kv_dtype=DType.FLOAT8_E4M3)
KEPT = ServedQueries(kept=True)
BLOCKS = Scales(granularity=Granularity.BLOCK)
VERIFY = Step(mode=Mode.TARGET_VERIFY, requests=(Request(0, 4, 20),), padded_tokens=8, tokens_per_request=4)
ACCEPTED = Step(mode=Mode.DRAFT_EXTEND, requests=(Request(0, 2, 9),), padded_tokens=3, tokens_per_request=4)
EXTEND = Step(mode=Mode.EXTEND, requests=(Request(0, 3, 3),), padded_tokens=3)
CHUNKED = Step(mode=Mode.CHUNKED_PREFILL, requests=(Request(0, 2, 9), Request(1, 3, 3)), padded_tokens=5)
CAPTURE = replace(VERIFY, requests=(), launch=Launch.CAPTURE)
REPLAY = replace(VERIFY, launch=Launch.REPLAY)


def case(*steps: Step, geometry: Geometry = GEOMETRY, **fields: Any) -> Case:
    """A case of these steps."""
    return Case(backend="any", geometry=geometry, steps=steps, **fields)


@pytest.mark.parametrize(
    "legal",
    [
        case(VERIFY, ACCEPTED, EXTEND, replace(CHUNKED, requests=(Request(0, 2, 9),))),
        case(CAPTURE, REPLAY, VERIFY, REPLAY),
        case(CHUNKED, geometry=LATENT, chunk_capacity=2),
        case(replace(VERIFY, requests=(Request(0, 4, 0),))),
        case(replace(VERIFY, requests=(Request(0, 4, 2),))),
        case(replace(EXTEND, requests=(Request(0, 3, 3), Request(1, 0, 5)))),
        case(VERIFY, pages=Pages(tail=TableTail.POISON, spare=1), views=Views(kv=KvView.PAIRED)),
        case(VERIFY, geometry=FP8),
        case(VERIFY, geometry=FP8, scales=Scales(k=0.5), queries=ServedQueries(scale=0.25, kept=True)),
        case(VERIFY, queries=ServedQueries(scale=2.0)),
    ],
)
def test_legal_cases_pass(legal: Case) -> None:
    validate(legal)


@pytest.mark.parametrize(
    ("geometry", "named"),
    [
        (replace(GEOMETRY, q_heads=0), "geometry.q_heads is 0: must be at least 1"),
        (replace(GEOMETRY, q_heads=3), "geometry.q_heads is 3: must be a multiple of kv_heads 2"),
        (replace(GEOMETRY, kv_heads=0), "geometry.kv_heads is 0"),
        (replace(GEOMETRY, head_dim_vo=2048), "geometry.head_dim_vo is 2048"),
        (replace(GEOMETRY, page_size=0), "geometry.page_size is 0"),
        (replace(GEOMETRY, window_left=-2), "geometry.window_left is -2"),
        (replace(GEOMETRY, soft_cap=float("nan")), "geometry.soft_cap is nan"),
        (replace(GEOMETRY, dtype=DType.INT32), "geometry.dtype is 'int32': must be one of float32"),
        (replace(GEOMETRY, kv_dtype=DType.FLOAT16), "geometry.kv_dtype is 'float16': must be that of the queries"),
        (replace(LATENT, kv_heads=2), "geometry.kv_heads is 2: must be 1 with this latent"),
        (replace(LATENT, head_dim_qk=32), "geometry.head_dim_qk is 32: must be 40"),
        (replace(LATENT, head_dim_vo=16), "geometry.head_dim_vo is 16: must be 32"),
        (replace(LATENT, latent=Latent(32, 8, 0, 16)), "geometry.latent.nope is 0"),
    ],
)
def test_impossible_geometries_are_named(geometry: Geometry, named: str) -> None:
    with pytest.raises(ImpossibleCase) as caught:
        validate(case(VERIFY, geometry=geometry))
    assert str(caught.value).startswith(named)


@pytest.mark.parametrize(
    ("step", "named"),
    [
        (replace(VERIFY, padded_tokens=3), "steps[0].padded_tokens is 3: must be a multiple of tokens_per_request 4"),
        (replace(VERIFY, padded_tokens=0), "steps[0].padded_tokens is 0: must be at least 4"),
        (replace(VERIFY, tokens_per_request=0), "steps[0].tokens_per_request is 0"),
        (replace(VERIFY, requests=(Request(0, 3, 20),)), "steps[0].requests[0].q_len is 3: must be tokens_per_request"),
        (replace(VERIFY, requests=(Request(0, 4, -1),)), "steps[0].requests[0].kv_len is -1"),
        (replace(VERIFY, requests=(Request(-1, 4, 9),)), "steps[0].requests[0].slot is -1"),
        (replace(VERIFY, requests=(Request(0, 4, 9), Request(0, 4, 9))), "steps[0].requests[1].slot is 0: must differ"),
        (replace(VERIFY, requests=(Request(1, 4, 9),)), "the set of slots is [1]: must be 0 to 0"),
        (replace(VERIFY, mode=Mode.DECODE), "steps[0].tokens_per_request is 4: must be 1 for decode"),
        (replace(VERIFY, padded_tokens=4 * 1025), "steps[0].padded_tokens is 4100: must be 1024 requests at most"),
        (replace(ACCEPTED, requests=(Request(0, 0, 9),)), "steps[0].requests[0].q_len is 0: must be 1 to"),
        (replace(ACCEPTED, requests=(Request(0, 5, 9),)), "steps[0].requests[0].q_len is 5: must be 1 to"),
        (replace(ACCEPTED, padded_tokens=1), "steps[0].padded_tokens is 1: must be at least 2"),
        (replace(EXTEND, tokens_per_request=3), "steps[0].tokens_per_request is 3: must be 0 for extend"),
        (replace(EXTEND, launch=Launch.CAPTURE), "steps[0].launch is 'capture': must be eager"),
        (REPLAY, "steps[0].launch is 'replay': needs an earlier capture of target_verify with padded_tokens 8"),
        (
            replace(VERIFY, launch=Launch.CAPTURE),
            "steps[0].requests is '1 requests': must be none: a capture is recorded on padding",
        ),
        (replace(VERIFY, requests=()), "steps is '1 captures or idle steps'"),
        (CAPTURE, "steps is '1 captures or idle steps'"),
    ],
)
def test_impossible_steps_are_named(step: Step, named: str) -> None:
    with pytest.raises(ImpossibleCase) as caught:
        validate(case(step))
    assert str(caught.value).startswith(named)


@pytest.mark.parametrize(
    ("impossible", "named"),
    [
        (replace(case(VERIFY), backend=""), "backend is ''"),
        (case(), "the number of steps is 0"),
        (case(VERIFY, seed=-1), "seed is -1"),
        (case(VERIFY, scales=Scales(k=float("nan"))), "scales.k is nan: must be finite"),
        (case(VERIFY, scales=Scales(v=float("inf"))), "scales.v is inf"),
        (case(VERIFY, scales=Scales(granularity=Granularity.HEAD)), "scales.granularity is 'head': must be tensor"),
        (
            case(
                VERIFY,
                scales=Scales(granularity=Granularity.TOKEN_HEAD),
                geometry=replace(LATENT, kv_dtype=DType.FLOAT8_E4M3),
            ),
            "scales.granularity is 'token_head': must be tensor for latents",
        ),
        (
            case(VERIFY, geometry=replace(GEOMETRY, kv_dtype=DType.FLOAT4_E2M1)),
            "scales.granularity is 'tensor': must be block",
        ),
        (
            case(VERIFY, scales=BLOCKS, geometry=replace(GEOMETRY, kv_dtype=DType.FLOAT8_E4M3)),
            "scales.granularity is 'block': must not be block",
        ),
        (
            case(VERIFY, scales=BLOCKS, geometry=replace(GEOMETRY, kv_dtype=DType.FLOAT4_E2M1, head_dim_vo=40)),
            "geometry.head_dim_vo is 40: must be a multiple of 16",
        ),
        (
            case(
                VERIFY,
                scales=replace(BLOCKS, blocks=BlockScales.SWIZZLED),
                geometry=replace(GEOMETRY, kv_dtype=DType.FLOAT4_E2M1, page_size=2),
            ),
            "scales.blocks is 'swizzled': must be linear",
        ),
        *(
            (case(VERIFY, queries=ServedQueries(scale=scale)), f"queries.scale is {scale}: must be a power of two")
            for scale in (0.3, 0.0, -2.0, 512.0, float("nan"), float("inf"))
        ),
        *(
            (case(VERIFY, geometry=geometry, scales=scales, queries=KEPT), "queries.kept is True: must be false")
            for geometry, scales in (
                (GEOMETRY, Scales()),
                (FP8, Scales(v=1.7)),
                (replace(FP8, head_dim_qk=48), Scales()),
                (replace(LATENT, kv_dtype=DType.FLOAT8_E4M3), Scales()),
            )
        ),
        (case(VERIFY, max_len_slack=-1), "max_len_slack is -1"),
        (case(VERIFY, pages=Pages(tail=TableTail.POISON, spare=0)), "pages.spare is 0: must be at least 1"),
        (
            case(VERIFY, views=Views(kv=KvView.PAIRED), geometry=replace(GEOMETRY, head_dim_vo=32)),
            "views.kv is 'paired'",
        ),
        (case(CHUNKED, chunk_capacity=1), "chunk_capacity is 1: must be at least 2"),
        (
            case(replace(CHUNKED, requests=(Request(0, 1, 600),)), geometry=LATENT, chunk_capacity=1),
            "chunk_capacity is 1: must be higher: it cuts steps[0] into 599 chunks",
        ),
        (
            case(replace(CHUNKED, mode=Mode.EXTEND, requests=(Request(0, 1, 600),)), geometry=LATENT, chunk_capacity=1),
            "chunk_capacity is 1: must be higher: it cuts steps[0] into 599 chunks",
        ),
        (
            case(replace(EXTEND, requests=(Request(0, 3, 2),)), geometry=LATENT),
            "steps[0].requests[0].kv_len is 2: must be at least q_len 3 in extend with latents",
        ),
        (
            case(CAPTURE, replace(CAPTURE, tokens_per_request=2), REPLAY),
            "steps[1].tokens_per_request is 2: must be 4 as in the earlier capture",
        ),
        (case(REPLAY, CAPTURE), "steps[0].launch is 'replay'"),
        (
            case(
                replace(EXTEND, requests=(Request(0, 1, 1 << 20),)),
                geometry=replace(GEOMETRY, kv_heads=4, q_heads=1024, head_dim_qk=1024, head_dim_vo=1024),
            ),
            "the KV pool is",
        ),
        (
            case(
                replace(EXTEND, requests=(Request(0, 1 << 19, 1 << 19),), padded_tokens=1 << 19),
                geometry=replace(GEOMETRY, kv_heads=1),
            ),
            "the work is",
        ),
        (
            case(replace(EXTEND, padded_tokens=1 << 20), geometry=replace(GEOMETRY, q_heads=1024)),
            "the query is",
        ),
        (
            case(replace(VERIFY, padded_tokens=4096), pages=Pages(table_slack=1 << 20)),
            "the page table is",
        ),
        (case(VERIFY, past=(PastFailure("StrayWrite", "a\nline", "", ""),)), "past is 'a\\nline'"),
        (case(VERIFY, past=(PastFailure("StrayWrite", "key_cache", "", ""),) * 65), "past is 65"),
    ],
)
def test_impossible_cases_are_named(impossible: Case, named: str) -> None:
    with pytest.raises(ImpossibleCase) as caught:
        validate(impossible)
    assert str(caught.value).startswith(named)


def test_a_draft_extend_needs_whole_strides_only_in_a_graph() -> None:
    capture = replace(ACCEPTED, requests=(), padded_tokens=8, launch=Launch.CAPTURE)
    validate(case(capture, replace(ACCEPTED, padded_tokens=8, launch=Launch.REPLAY), ACCEPTED))
    with pytest.raises(ImpossibleCase, match="must be a multiple of tokens_per_request 4"):
        validate(case(replace(capture, padded_tokens=6), ACCEPTED))


def test_chunks_cover_the_longest_prefix_in_equal_shares() -> None:
    assert CHUNKED.chunks(2) == 7
    assert CHUNKED.chunks(8) == 2
    assert CHUNKED.chunks(256) == 1
    assert EXTEND.chunks(256) == 0


def test_products_count_queries_times_keys_of_real_requests() -> None:
    assert products(case(VERIFY, EXTEND)) == (4 * 20 + 3 * 3) * 4 * (64 + 64)
