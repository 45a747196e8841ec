"""A step that writes and then attends: right pairs pass, and a failure is that of the half that is wrong."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from small_cases import HEADS, LATENTS, drawn, lighter, passed, run, step

from attnfuzz.harness.backends.registry import UnknownBackend, fixed, is_file, resolve
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.kernels.cache_writes.then_attend import NoPair, WriteThenAttend
from attnfuzz.kernels.cache_writes.writer_session import WriterSession
from attnfuzz.kernels.defects.catalogue import planted
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.native import build
from attnfuzz.reference.case import (
    Case,
    Granularity,
    KvView,
    Launch,
    Mode,
    OtherGroup,
    PaddedSlot,
    PageOrder,
    Pages,
    Request,
    Scales,
    Tombstone,
    Unused,
    Views,
)
from attnfuzz.reference.dtypes import DType

pytestmark = pytest.mark.slow
"""Many cases are drawn, and run."""

WRITTEN = {Kind.UNWRITTEN, Kind.WRITE_MISMATCH, Kind.STRAY_WRITE}
NAME = "native:reshape_and_cache,trtllm_mha"
DECODES = step(Mode.DECODE, (1, 7), (1, 5))


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    build.load()


def case_of(backend: Backend, *steps: Any, **fields: Any) -> Case:
    latent = backend.capability.latent
    defaults: dict[str, Any] = {
        "padded_slot": backend.capability.padded_slots[0],
        "geometry": LATENTS if latent else HEADS,
    }
    return Case(backend=backend.name, steps=steps or (DECODES,), **defaults | fields)


def failures(backend: Backend, *steps: Any, **fields: Any) -> tuple[Observation, ...]:
    verdict = run(case_of(backend, *steps, **fields), backend)
    assert verdict.unsupported is None
    return verdict.failures


@pytest.mark.parametrize(
    "name",
    [
        NAME,
        "native:set_mla,trtllm_mla",
        "native:reshape_and_cache_head,trtllm_mha_scaled",
        "native:reshape_and_cache_token_head,trtllm_mha_scaled",
        "native:reshape_and_cache_nvfp4,trtllm_mha_nvfp4",
    ],
)
def test_a_right_pair_passes_drawn_cases(name: str) -> None:
    backend, found = resolve(name), lighter(drawn(name, 20, seed=2))
    for case in found:
        passed(case, backend)
    assert any(each.launch is Launch.REPLAY for case in found for each in case.steps)


@pytest.mark.parametrize("behind", Unused)
@pytest.mark.parametrize("order", PageOrder)
def test_attention_sees_the_new_tokens_where_pages_are_shared_and_slots_were_used(
    order: PageOrder, behind: Unused
) -> None:
    backend = resolve(NAME)
    # Request 0 writes into a page that request 1 attends to.
    steps = (step(Mode.EXTEND, (3, 7), (2, 9)), step(Mode.EXTEND, (4, 8), (1, 12)))
    assert not failures(backend, *steps, pages=Pages(order=order, behind=behind))


def test_an_fp8_cache_with_scales_is_attended_to_as_it_is_stored() -> None:
    geometry = structs.replace(HEADS, kv_dtype=DType.FLOAT8_E4M3)
    assert not failures(resolve(NAME), geometry=geometry, scales=Scales(k=1.7, v=0.37), pages=Pages(hole=3))


@pytest.mark.parametrize("wrong", ["odd_head_not_written", "negative_slot_taken_for_the_first"])
def test_a_wrong_write_is_the_writers_failure_alone(wrong: str) -> None:
    backend = resolve(f"native:reshape_and_cache+{wrong},trtllm_mha")
    geometry = structs.replace(HEADS, q_heads=3, kv_heads=3)
    found = failures(backend, step(Mode.DECODE, (1, 7), (1, 5), rows=3), geometry=geometry)
    assert found
    assert {each.kind for each in found} <= WRITTEN
    assert {each.kernel for each in found} == {f"native_reshape_and_cache_{wrong}"}


@pytest.mark.parametrize("launch", [Launch.EAGER, Launch.REPLAY])
def test_attention_that_is_wrong_beside_a_wrong_write_is_found_on_the_right_contents(launch: Launch) -> None:
    backend = resolve("native:reshape_and_cache+odd_head_not_written,trtllm_mha+query_heads_interleaved")
    geometry = structs.replace(HEADS, q_heads=6, kv_heads=3)
    steps = [structs.replace(DECODES, launch=launch)]
    if launch is Launch.REPLAY:
        steps.insert(0, structs.replace(DECODES, requests=(), launch=Launch.CAPTURE))
    kinds = {each.kind for each in failures(backend, *steps, geometry=geometry)}
    assert kinds & WRITTEN
    assert Kind.OUTPUT_MISMATCH in kinds


def test_attention_that_is_wrong_is_no_failure_of_the_writer() -> None:
    backend = resolve("native:reshape_and_cache,trtllm_mha+query_heads_interleaved")
    assert {each.kind for each in failures(backend)} == {Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH}


def test_a_replay_writes_and_attends_in_one_graph() -> None:
    replays = [
        structs.replace(step(Mode.DECODE, *lengths, rows=4), launch=Launch.REPLAY)
        for lengths in (((1, 7), (1, 5), (1, 6)), ((1, 4),))
    ]
    capture = structs.replace(replays[0], requests=(), launch=Launch.CAPTURE)
    assert not failures(resolve(NAME), capture, *replays)
    stale = resolve("native:reshape_and_cache+slots_of_padding_not_refreshed,trtllm_mha")
    assert {each.kind for each in failures(stale, capture, *replays)} == {Kind.STRAY_WRITE}


def test_a_later_step_has_the_pages_that_another_request_had() -> None:
    steps = (
        step(Mode.EXTEND, (5, 5), (2, 2)),
        structs.replace(DECODES, requests=(Request(1, 1, 3), Request(0, 1, 2))),
    )
    assert not failures(resolve(NAME), *steps)


@pytest.mark.parametrize("name", [name for name in planted() if name.startswith(f"{NAME}+")])
def test_a_mistake_between_both_is_attentions(name: str) -> None:
    backend = resolve(name)
    geometry = structs.replace(HEADS, kv_dtype=DType.FLOAT8_E4M3)
    steps = (step(Mode.DECODE, (1, 9), (1, 5)),)
    found = failures(backend, *steps, geometry=geometry, scales=Scales(k=1.7))
    assert found
    assert not {each.kind for each in found} & WRITTEN


class _Refuses(WriterSession):
    def write(self, step: Any) -> None:
        raise RuntimeError("no")


def test_an_exception_of_the_writer_is_a_failure() -> None:
    backend = resolve(NAME)
    assert isinstance(backend, WriteThenAttend)
    refuses = replace(backend, writer=replace(backend.writer, session=_Refuses))  # type: ignore[type-var]
    (found,) = failures(refuses)
    assert found.kind is Kind.RAISED


def test_a_pair_supports_the_common_features() -> None:
    can = resolve("native:store_cache,trtllm_mha").capability
    assert not can.writes
    assert not can.empty_kv
    assert (can.kv_views, can.padded_slots) == ((KvView.TOKEN_MAJOR,), (PaddedSlot.DUMMY, PaddedSlot.RESERVED))
    assert can.scales(DType.FLOAT8_E4M3)
    assert not resolve("native:append,trtllm_mha").capability.fp8_kv
    assert all(mode.speculative for mode in resolve("native:set_mla,trtllm_mla").capability.modes)
    assert not failures(resolve("native:store_cache,trtllm_mha"), views=Views(kv=KvView.TOKEN_MAJOR))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("trtllm_mha,trtllm_mla", "trtllm_mha writes no new tokens into the KV cache"),
        ("native:append,native:append", "native:append computes no attention"),
        ("native:append,trtllm_mla", "one of them has latents"),
        ("native:append,hopper:trtllm_mha", "native:append runs on cpu, and hopper:trtllm_mha on cuda"),
        ("flashinfer:append,hopper:trtllm_mha", "compiled for some geometries"),
        ("native:reshape_and_cache_head,trtllm_mha", "have no granularities in common"),
        ("native:append,trtllm_mha_nvfp4", "one of them has an NVFP4 cache"),
        ("native:append,torch_sdpa", "torch_sdpa stores no new tokens in the pool, or has a pool of its own"),
        ("native:copy_blocks,trtllm_mha", "native:copy_blocks stores no new tokens"),
        ("native:append,nothing", "unknown backend 'nothing'"),
    ],
)
def test_a_name_of_no_pair_says_why(name: str, reason: str) -> None:
    with pytest.raises(UnknownBackend, match=reason):
        resolve(name)


def test_no_pair_without_a_common_mode() -> None:
    writer, reader = resolve("native:append"), resolve("trtllm_mha")
    modes: Callable[..., Any] = lambda backend, *some: replace(  # noqa: E731 - two calls
        backend, capability=structs.replace(backend.capability, modes=some, graph_modes=())
    )
    with pytest.raises(NoPair, match="have no modes in common"):
        WriteThenAttend(modes(writer, Mode.DECODE), modes(reader, Mode.EXTEND))


def test_defects_and_revisions_belong_to_one_half() -> None:
    name = "native:store_cache@32477-before,trtllm_mha+window_one_short"
    assert resolve(name).name == name
    assert fixed(name) == "native:store_cache,trtllm_mha"
    assert not is_file("my.py:WRITER,my.py:READER")


@pytest.mark.parametrize("group", OtherGroup)
@pytest.mark.parametrize("tombstone", Tombstone)
def test_a_pair_writes_and_attends_in_pools_of_windows_and_of_two_groups(
    tombstone: Tombstone, group: OtherGroup
) -> None:
    backend = resolve(NAME)
    geometry = structs.replace(HEADS, window_left=2)
    steps = (step(Mode.EXTEND, (3, 17), (2, 9)), step(Mode.DECODE, (1, 18), (1, 10), rows=3))
    pages = Pages(tombstone=tombstone, other_group=group, order=PageOrder.REVERSED)
    assert not failures(backend, *steps, geometry=geometry, pages=pages)


@pytest.mark.parametrize("wrong", ["nibbles_written_in_reverse", "global_scale_applied_twice"])
def test_a_wrong_write_of_nvfp4_is_the_failure_of_its_writer(wrong: str) -> None:
    whole = next(name for name in planted() if name.endswith(f"+{wrong}"))
    backend = resolve(f"{whole},trtllm_mha_nvfp4")
    geometry = structs.replace(HEADS, kv_dtype=DType.FLOAT4_E2M1, head_dim_qk=64, head_dim_vo=64)
    scales = Scales(k=0.37, v=1.7, granularity=Granularity.BLOCK, blocks=backend.capability.block_scales[0])
    found = failures(backend, geometry=geometry, scales=scales)
    assert found
    assert {each.kind for each in found} <= WRITTEN


def test_a_wrong_scale_is_the_failure_of_its_writer() -> None:
    pair = WriteThenAttend(
        planted()["native:reshape_and_cache_token_head+written_scale_of_240"], resolve("trtllm_mha_scaled")
    )
    scaled = structs.replace(HEADS, kv_dtype=DType.FLOAT8_E4M3)
    failed = failures(pair, geometry=scaled, scales=Scales(granularity=Granularity.TOKEN_HEAD))
    assert {each.place for each in failed} == {"k_scales", "v_scales"}
    assert {each.kind for each in failed} <= WRITTEN
