"""The fixed backends: whatever is drawn or thought of, they give no failure."""

import msgspec
import pytest
from repetition import examples
from small_cases import HEADS, LATENTS, drawn, drawn_for, lighter, passed, step

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.kernels.native import build
from attnfuzz.kernels.trtllm.backends import MHA_NVFP4, MHA_SCALED, TrtllmBackend
from attnfuzz.reference.case import (
    Case,
    KvView,
    Launch,
    Mode,
    Outputs,
    PageOrder,
    Pages,
    QueryView,
    Step,
    TableTail,
    Views,
    Workspace,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.validity import validate

BACKENDS = {"trtllm_mha": HEADS, "trtllm_mla": LATENTS}


def case_of(backend: str, *steps: Step, **fields: object) -> Case:
    made = Case(backend=backend, geometry=BACKENDS[backend], steps=steps, seed=11)
    return msgspec.structs.replace(made, **fields)


def assert_passes(case: Case) -> None:
    validate(case)
    assert resolve(case.backend).capability.why_not(case) is None
    assert passed(case).rows


def lengths(mode: Mode, backend: str) -> tuple[tuple[int, int], ...]:
    """Requests without keys, with fewer keys than queries, at the edges of pages, and over several of them."""
    stride = {Mode.DECODE: 1, Mode.TARGET_VERIFY: 4, Mode.DRAFT_EXTEND_V2: 4}.get(mode)
    q_lens = (stride,) * 6 if stride else (1, 3, 4, 2, 1, 4)
    if backend == "trtllm_mla" and not mode.speculative:
        return (*((q_len, q_len + prefix) for q_len, prefix in zip(q_lens, (0, 0, 1, 4, 15, 30), strict=True)), (0, 5))
    return tuple(zip(q_lens, (0, 1, 4, 5, 16, 33), strict=True))


STATES = [
    {"pages": Pages(tail=TableTail.MINUS_ONE, table_slack=3), "outputs": Outputs.STALE},
    {"pages": Pages(order=PageOrder.SHUFFLED, tail=TableTail.POISON), "workspace": Workspace.DIRTY},
    {"pages": Pages(order=PageOrder.SHARED_PREFIX, tail=TableTail.STALE), "workspace": Workspace.REUSED},
    {"pages": Pages(order=PageOrder.INTERLEAVED, spare=0), "views": Views(query=QueryView.FUSED_QKV, table_gap=2)},
    {"views": Views(query=QueryView.HEAD_GAP, kv=KvView.TOKEN_MAJOR), "max_len_slack": 1000, "chunk_capacity": 7},
]


@pytest.mark.slow
@examples(15, 300)
@pytest.mark.parametrize("backend", BACKENDS)
def test_drawn_cases_pass(backend: str, count: int) -> None:
    for case in lighter(drawn(backend, count)):
        assert_passes(case)


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("mode", Mode.of_kernels())
@pytest.mark.parametrize("backend", BACKENDS)
def test_every_mode_passes_eagerly_with_and_without_padding(backend: str, mode: Mode, state: dict[str, object]) -> None:
    stride = 4 if mode.speculative else 0
    batch = lengths(mode, backend)
    for rows in (0, 9 if mode.uniform else 40):
        assert_passes(case_of(backend, step(mode, *batch, stride=stride, rows=rows), **state))


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("mode", [mode for mode in Mode.of_kernels() if mode.speculative])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_passes_on_batches_that_it_was_not_captured_with(
    backend: str, mode: Mode, state: dict[str, object]
) -> None:
    batch = lengths(mode, backend)
    steps = [step(mode, stride=4, rows=8, launch=Launch.CAPTURE)]
    for count in (6, 1, 3, 6):
        steps.append(step(mode, *batch[-count:], stride=4, rows=8, launch=Launch.REPLAY))
        steps.append(step(mode, *batch[:count], stride=4))
    assert_passes(case_of(backend, *steps, **state))


@pytest.mark.parametrize("backend", BACKENDS)
def test_graphs_of_several_modes_and_buckets_share_static_metadata(backend: str) -> None:
    captures = [
        step(mode, stride=4, rows=rows, launch=Launch.CAPTURE)
        for mode in (Mode.DRAFT_EXTEND, Mode.TARGET_VERIFY, Mode.DECODE)
        for rows in (8, 2, 1)
    ]
    replays = [
        step(Mode.TARGET_VERIFY, (4, 30), stride=4, rows=8, launch=Launch.REPLAY),
        step(Mode.DECODE, (1, 5), stride=1, rows=2, launch=Launch.REPLAY),
        step(Mode.DRAFT_EXTEND, (1, 2), (3, 17), stride=4, rows=2, launch=Launch.REPLAY),
        step(Mode.DECODE, (1, 9), stride=1, rows=1, launch=Launch.REPLAY),
    ]
    assert_passes(case_of(backend, *captures, *replays, workspace=Workspace.DIRTY))


@pytest.mark.parametrize("accepted", [(1, 1, 1), (1, 4, 2), (4, 4, 4)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_accept_lengths_pass_eagerly_and_in_a_graph(backend: str, accepted: tuple[int, ...]) -> None:
    batch = tuple((q_len, kv_len) for q_len, kv_len in zip(accepted, (3, 8, 21), strict=True))
    capture = step(Mode.DRAFT_EXTEND, stride=4, rows=4, launch=Launch.CAPTURE)
    replay = step(Mode.DRAFT_EXTEND, *batch, stride=4, rows=4, launch=Launch.REPLAY)
    assert_passes(case_of(backend, step(Mode.DRAFT_EXTEND, *batch, stride=4), capture, replay))


@pytest.mark.parametrize("outputs", Outputs)
@pytest.mark.parametrize("capacity", [4, 9, 64])
def test_many_chunks_of_unequal_prefixes_merge_to_the_whole(capacity: int, outputs: Outputs) -> None:
    prefill = step(Mode.CHUNKED_PREFILL, (2, 2), (3, 13), (1, 42), (4, 64), rows=16)
    assert_passes(case_of("trtllm_mla", prefill, chunk_capacity=capacity, outputs=outputs))


@pytest.mark.parametrize("window", [-1, 0, 5])
def test_sinks_and_windows_pass_on_both_kernels(window: int) -> None:
    geometry = msgspec.structs.replace(HEADS, sinks=True, window_left=window, dtype=DType.BFLOAT16)
    geometry = msgspec.structs.replace(geometry, kv_dtype=DType.FLOAT8_E4M3)
    for mode in (Mode.TARGET_VERIFY, Mode.EXTEND):
        steps = step(mode, *((4, kv_len) for kv_len in (0, 2, 4, 33)), stride=4 if mode.speculative else 0, rows=20)
        assert_passes(case_of("trtllm_mha", steps, geometry=geometry))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_without_keys_passes(backend: str) -> None:
    assert_passes(case_of(backend, step(Mode.DECODE, (1, 0), rows=4)))
    assert_passes(case_of(backend, step(Mode.DRAFT_EXTEND, (2, 0), (4, 0), stride=4)))


def test_one_pool_for_keys_and_values_passes() -> None:
    for mode in (Mode.DECODE, Mode.EXTEND):
        assert_passes(case_of("trtllm_mha", step(mode, (1, 9), (1, 1)), views=Views(kv=KvView.PAIRED)))


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    build.load()


@pytest.mark.slow
@pytest.mark.parametrize("backend", [MHA_SCALED, MHA_NVFP4], ids=lambda each: each.name)
def test_drawn_cases_of_every_granularity_pass(backend: TrtllmBackend) -> None:
    can = backend.capability
    found = lighter(drawn_for(can, 30, backend.name, seed=1))
    for case in found:
        passed(case, backend)
    assert {case.scales.granularity for case in found} == set(can.granularities)
    assert {case.scales.blocks for case in found} == set(can.block_scales)
    assert {case.geometry.kv_layout for case in found} == set(can.layouts)
    assert {case.views.kv for case in found} == set(can.kv_views)
