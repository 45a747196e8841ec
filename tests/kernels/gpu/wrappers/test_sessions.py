"""Sessions over FlashInfer's wrappers, on fake wrappers that compute what their metadata says."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from recorder import Launched, Recorder
from repetition import examples
from small_cases import drawn, lighter, passed, run, step

from attnfuzz.kernels.gpu.wrappers import auto, wrapper
from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.reference.case import (
    Case,
    KvView,
    Launch,
    Mask,
    Mode,
    Outputs,
    Pages,
    Scales,
    Step,
    TableTail,
    Views,
    Workspace,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout

pytest.importorskip("flashinfer", reason="the fake wrappers take what the installed ones take")
import fake_wrappers
import flashinfer.utils
import wrapper_backends
from flashinfer import prefill

LaunchesOf = Callable[[Case], list[Launched]]

PACKED = ("FA2_PAGED_PACKED_MASK", "FA2_RAGGED_PACKED_MASK")
BACKENDS = ("FA2_PAGED", "FA3_PAGED", "FA2_RAGGED", "FA3_RAGGED", "FA3_RAGGED_HND", "BATCH_DECODE", *PACKED)
VARIANTS = (
    "BATCH_DECODE_TENSOR_CORES",
    "FA3_BATCH_DECODE",
    "CUDA_GRAPH_DECODE",
    "CUDA_GRAPH_DECODE_TENSOR_CORES",
    "FA2_SINKS",
    "FA3_SINKS",
    "AUTO_PAGED",
    # Those that the installed release has.
    *(
        name
        for name in ("FA2_SINKS_DECODE", "FA3_SINKS_DECODE", "FA2_TOKEN_HEAD_SCALES")
        if hasattr(wrapper_backends, name)
    ),
)
GEOMETRY = Geometry(q_heads=4, kv_heads=2, head_dim_qk=64, head_dim_vo=64, page_size=16)
EIGHT_BITS = Geometry(
    q_heads=4,
    kv_heads=1,
    head_dim_qk=128,
    head_dim_vo=128,
    page_size=16,
    dtype=DType.FLOAT16,
    kv_dtype=DType.FLOAT8_E4M3,
    window_left=7,
)
TWO_DECODES = (step(Mode.DECODE, (1, 20), (1, 5)), step(Mode.DECODE, (1, 21), (1, 6)))
TWO_EXTENDS = (step(Mode.EXTEND, (3, 20)), step(Mode.EXTEND, (2, 4)))


def name_of(backend: str) -> str:
    return f"{Path(wrapper_backends.__file__)}:{backend}"


def two_steps(backend: str) -> tuple[Step, Step]:
    return TWO_DECODES if backend == "BATCH_DECODE" else TWO_EXTENDS


def case_of(
    backend: str, *steps: Step, workspace: Workspace = Workspace.FRESH, geometry: Geometry = GEOMETRY, **fields: object
) -> Case:
    case = Case(backend=name_of(backend), geometry=geometry, steps=steps or two_steps(backend), workspace=workspace)
    return replace(case, **fields)


def names(launches: list[Launched]) -> list[str]:
    return [launched.op.name.rpartition(".")[2] for launched in launches]


@pytest.mark.slow
@examples(9, 40)
@pytest.mark.parametrize("backend", [*BACKENDS, *VARIANTS])
def test_drawn_cases_pass(backend: str, count: int) -> None:
    rows = 0
    for case in lighter(drawn(name_of(backend), count // 3 if "RAGGED" in backend or backend in VARIANTS else count)):
        verdict = run(case)
        assert verdict.observations == ()
        # Requests with fewer keys than a verify's queries are refused, and graphs with a form that is not promised.
        why = verdict.unsupported or ""
        assert not why or why.startswith("a graph ") or why.endswith("queries of a request with fewer keys")
        rows += verdict.rows
    assert rows


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_of_padding_alone_passes(backend: str) -> None:
    mode = Mode.DECODE if backend == "BATCH_DECODE" else Mode.EXTEND
    passed(case_of(backend, Step(mode=mode, requests=(), padded_tokens=3, tokens_per_request=1)))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fresh_wrapper_is_planned_and_run_once(launches_of: LaunchesOf, backend: str) -> None:
    launches = launches_of(case_of(backend))
    assert names(launches) == ["plan", "run"] * 2
    assert launches[0].arguments["wrapper"] is not launches[2].arguments["wrapper"]


@pytest.mark.slow
@pytest.mark.parametrize("workspace", [Workspace.REUSED, Workspace.DIRTY])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kept_wrapper_serves_another_layer_before_each_that_is_judged(
    launches_of: LaunchesOf, backend: str, workspace: Workspace
) -> None:
    launches = launches_of(case_of(backend, workspace=workspace))
    assert names(launches) == ["plan", "plan", "run", "run"] * 2
    assert len({id(launched.arguments["wrapper"]) for launched in launches}) == 1
    other, plan, before, judged = (launched.arguments for launched in launches[:4])
    assert other["sm_scale"] == 2 * plan["sm_scale"]
    assert (other.get("causal"), plan.get("causal")) == ((None, None) if backend == "BATCH_DECODE" else (False, True))
    assert torch.equal(before["q"], judged["q"].flip(-1))


@pytest.mark.parametrize("backend", ["FA2_PAGED", "BATCH_DECODE"])
def test_workspaces_have_the_size_that_the_wrapper_names(launches_of: LaunchesOf, backend: str) -> None:
    plan, run_ = (launched.arguments for launched in launches_of(case_of(backend, TWO_DECODES[0])))
    assert run_["float_workspace_buffer"].numel() == (4096 if backend == "FA2_PAGED" else 16)
    # Three pages of four bytes, rounded up to 16.
    assert plan["int_workspace_buffer"].numel() == 4096 + 16


def test_a_wrapper_that_names_no_size_gets_the_recommended_one(launches_of: LaunchesOf) -> None:
    plan, _ = (launched.arguments for launched in launches_of(case_of("FA3_RAGGED", step(Mode.EXTEND, (2, 3)))))
    assert plan["float_workspace_buffer"].numel() == wrapper.RECOMMENDED.floats
    assert plan["int_workspace_buffer"].numel() == wrapper.RECOMMENDED.ints


def test_a_kept_workspace_is_replaced_only_when_a_plan_needs_more(launches_of: LaunchesOf) -> None:
    lengths = (20, 90, 40)
    steps = (step(Mode.DECODE, (1, kv_len)) for kv_len in lengths)
    launches = launches_of(case_of("FA2_PAGED", *steps, workspace=Workspace.REUSED))
    sizes = [each.arguments["int_workspace_buffer"].numel() for each in launches[3::4]]
    assert sizes == [4096 + 16, 4096 + 32, 4096 + 32]


@pytest.mark.parametrize(("backend", "floats"), [("FA2_PAGED", 0xFF), ("BATCH_DECODE", 0)])
def test_dirty_workspaces_hold_nan_but_for_decodes_floats(launches_of: LaunchesOf, backend: str, floats: int) -> None:
    first, *_ = launches_of(case_of(backend, step(Mode.DECODE, (1, 90)), workspace=Workspace.DIRTY))
    assert first.arguments["float_workspace_buffer"].shape == (4096,)
    assert (first.arguments["float_workspace_buffer"] == floats).all()
    assert (first.arguments["int_workspace_buffer"] == 0xFF).all()


def replayed(*replays: Step, tail: TableTail = TableTail.MINUS_ONE, slack: int = 1, mode: Mode = Mode.DECODE) -> Case:
    capture = step(mode, stride=2, rows=3, launch=Launch.CAPTURE)
    pages = Pages(tail=tail, table_slack=slack)
    return case_of("BATCH_DECODE" if mode is Mode.DECODE else "FA2_PAGED", capture, *replays, pages=pages)


def test_a_graph_reads_buffers_whose_tail_is_stale(launches_of: LaunchesOf) -> None:
    batches = (((1, 40), (1, 20)), ((1, 5),))
    launches = launches_of(replayed(*(step(Mode.DECODE, *each, rows=3, launch=Launch.REPLAY) for each in batches)))
    plan, warm, first, second = (each.arguments for each in (launches[0], *launches[2::2][:1], *launches[-3::2]))
    assert plan["paged_kv_indices_buffer"].tolist() == [-1] * 7
    assert warm["paged_kv_indices_buffer"].tolist() == [0, 0, 0, *[-1] * 4]
    assert first["paged_kv_indices_buffer"].tolist() == [1, 2, 3, 4, 5, 0, -1]
    assert second["paged_kv_indices_buffer"].tolist() == [1, 0, 0, 4, 5, 0, -1]
    assert second["paged_kv_indptr_buffer"].tolist() == [0, 1, 2, 3]
    assert second["paged_kv_last_page_len_buffer"].tolist() == [5, 1, 1]


def test_a_graphs_workspaces_have_room_for_its_largest_replay(launches_of: LaunchesOf) -> None:
    case = replayed(step(Mode.DECODE, (1, 160), (1, 20), rows=3, launch=Launch.REPLAY))
    plans = [each.arguments for each in launches_of(case) if each.op.name.endswith("plan")]
    # Planned again, since the second has other workspaces than the first.
    assert [plan["int_workspace_buffer"].numel() for plan in plans] == [4096 + 16, 4096 + 64, 4096 + 64]


def test_queries_of_accepted_drafts_are_replayed_on_the_rows_that_were_planned(launches_of: LaunchesOf) -> None:
    case = replayed(
        step(Mode.DRAFT_EXTEND, (1, 9), (2, 30), stride=2, rows=3, launch=Launch.REPLAY), mode=Mode.DRAFT_EXTEND
    )
    *_, plan, run_ = (launched.arguments for launched in launches_of(case))
    assert plan["qo_indptr"].tolist() == [0, 1, 3, 5]
    assert run_["q"].shape[0] == 6


@pytest.mark.parametrize("backend", ["FA2_PAGED", "FA2_RAGGED"])
def test_rows_beyond_the_plan_are_cleared_and_no_kernel_sees_them(
    launches_of: LaunchesOf, bench_of: Callable[[Case], Bench], backend: str
) -> None:
    case = case_of(backend, step(Mode.EXTEND, (3, 20), rows=7), outputs=Outputs.STALE)
    _, run_ = (launched.arguments for launched in launches_of(case))
    assert [run_[name].shape[0] for name in ("q", "out", "lse")] == [3, 3, 3]
    output = wrapper_backends.FA2_PAGED.open(case, bench_of(case)).forward(0)
    assert output.out[:3].abs().min() > 0
    assert not output.out[3:].any()
    assert output.lse[3:].isneginf().all()


@pytest.mark.parametrize(
    ("backend", "geometry", "kv_len", "v_scale", "roundings"),
    [
        ("BATCH_DECODE", GEOMETRY, 20, 1.0, 1),
        ("BATCH_DECODE", GEOMETRY, 90, 1.0, 2),
        ("BATCH_DECODE", GEOMETRY, 90, 0.5, 3),
        ("FA2_PAGED", GEOMETRY, 20, 1.0, 2),
        ("FA2_PAGED", EIGHT_BITS, 20, 0.5, 3),
        ("FA2_RAGGED", GEOMETRY, 20, 0.5, 2),
        ("FA2_RAGGED", EIGHT_BITS, 20, 0.5, 3),
        ("FA2_RAGGED", EIGHT_BITS, 20, 0.0, 3),
        ("FA3_RAGGED", GEOMETRY, 20, 1.0, 1),
    ],
)
def test_outputs_are_rounded_by_the_kernel_by_merges_and_by_the_scale_of_values(
    bench_of: Callable[[Case], Bench], backend: str, geometry: Geometry, kv_len: int, v_scale: float, roundings: int
) -> None:
    one = step(Mode.EXTEND if "RAGGED" in backend else Mode.DECODE, (1, kv_len))
    case = case_of(backend, one, geometry=geometry, scales=Scales(k=2.0, v=v_scale))
    output = getattr(wrapper_backends, backend).open(case, bench_of(case)).forward(0)
    assert output.roundings == roundings
    scaled = "RAGGED" not in backend or geometry is EIGHT_BITS
    assert output.bmm2_scale == (v_scale if scaled else 1.0)
    assert output.bmm1_scale == pytest.approx(geometry.head_dim_qk**-0.5 * (2 if scaled else 1))


@pytest.mark.parametrize(
    ("layout", "view", "key_stride", "value_stride"),
    [
        (KvLayout.NHD, KvView.SEPARATE, (128, 64, 1), (128, 64, 1)),
        (KvLayout.NHD, KvView.PAIRED, (256, 64, 1), (256, 64, 1)),
        (KvLayout.NHD, KvView.TOKEN_MAJOR, (128, 64, 1), (256, 128, 1)),
        (KvLayout.HND, KvView.SEPARATE, (23 * 64, 64, 1), (23 * 64, 64, 1)),
        (KvLayout.HND, KvView.PAIRED, (64, 256, 1), (64, 256, 1)),
        (KvLayout.HND, KvView.TOKEN_MAJOR, (64, 128, 1), (128, 256, 1)),
    ],
)
def test_packed_keys_and_values_have_the_strides_that_the_case_asks_for(
    bench_of: Callable[..., Bench],
    layout: KvLayout,
    view: KvView,
    key_stride: tuple[int, ...],
    value_stride: tuple[int, ...],
) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    class Keeper(Recorder):
        def launch(self, op: object, arguments: dict[str, torch.Tensor]) -> None:
            seen.append(arguments)

    geometry = replace(GEOMETRY, kv_layout=layout)
    case = case_of("FA2_RAGGED", step(Mode.EXTEND, (3, 20), (1, 3)), geometry=geometry, views=Views(kv=view))
    wrapper_backends.FA2_RAGGED.open(case, bench_of(case, Keeper())).forward(0)
    key, value = seen[-1]["k"], seen[-1]["v"]
    assert (key.stride(), value.stride()) == (key_stride, value_stride)
    tokens = SlotTokens(case, heads=2, key_dim=64, value_dim=64, dtype=DType.BFLOAT16)
    by_token = (each.transpose(0, 1) if layout is KvLayout.HND else each for each in (key, value))
    assert all(torch.equal(*pair) for pair in zip(by_token, (tokens.key, tokens.value), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["FA2_PAGED", "FA2_PAGED_PACKED_MASK", "FA2_RAGGED", "FA2_RAGGED_PACKED_MASK"])
def test_a_plan_gets_the_masks_of_its_step_and_a_kept_wrapper_none_for_another_layer(
    launches_of: LaunchesOf, backend: str
) -> None:
    case = case_of(backend, workspace=Workspace.REUSED, mask=Mask.CUSTOM)
    other, plan, _, judged = (launched.arguments for launched in launches_of(case)[:4])
    given = "packed_custom_mask" if "PACKED" in backend else "custom_mask"
    assert given not in other
    assert plan[given].numel() == (8 if "PACKED" in backend else 3 * 20)
    # Packed bits are read where they lie.
    assert (given in judged) == ("PACKED" in backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["FA2_PAGED", "FA3_PAGED", "FA2_RAGGED", "FA3_RAGGED"])
def test_a_full_mask_is_a_plan_that_is_not_causal(launches_of: LaunchesOf, backend: str) -> None:
    plan, *_ = (launched.arguments for launched in launches_of(case_of(backend, mask=Mask.FULL)))
    assert plan["causal"] is False
    assert "custom_mask" not in plan


@pytest.mark.slow
def test_a_graph_has_buffers_for_the_masks_of_its_largest_replay(launches_of: LaunchesOf) -> None:
    capture = step(Mode.TARGET_VERIFY, stride=3, rows=2, launch=Launch.CAPTURE)
    replays = [
        step(Mode.TARGET_VERIFY, (3, length), (3, 4), stride=3, rows=2, launch=Launch.REPLAY) for length in (9, 40)
    ]
    case = case_of("FA2_PAGED", capture, *replays, mask=Mask.TREE)
    plan, *_ = (launched.arguments for launched in launches_of(case))
    assert plan["custom_mask_buf"].numel() == 15 + 2
    assert plan["mask_indptr_buf"].numel() == 3
    passed(case)


@pytest.mark.parametrize(("q_len", "chosen"), [(64, "fa2"), (65, "fa3")])
def test_a_failure_names_the_kernel_that_flashinfer_chose(
    q_len: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(self: object, arguments: dict[str, torch.Tensor], out: torch.Tensor, lse: torch.Tensor) -> None:
        del self, arguments, lse
        out.fill_(7.0)

    monkeypatch.setattr(fake_wrappers.BatchPrefillWithPagedKVCacheWrapper, "compute", forget)
    verdict = run(case_of("AUTO_PAGED", step(Mode.EXTEND, (q_len, 80))))
    assert verdict.observations
    assert all(f"FlashInfer chose {chosen}" in observation.message for observation in verdict.observations)


@pytest.mark.parametrize("custom", [False, True])
@pytest.mark.parametrize("q_lens", [(1,), (64, 3), (65, 3), (200,)])
def test_the_stand_in_chooses_as_flashinfer_does_on_hopper(
    q_lens: tuple[int, ...], *, custom: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = prefill.BatchPrefillWithPagedKVCacheWrapper
    if not hasattr(real, "_determine_auto_backend"):
        pytest.skip("since 0.7.4")
    monkeypatch.setattr(flashinfer.utils, "is_sm90a_supported", lambda _: True)
    wrapper: Any = SimpleNamespace(device="cuda", _cuda_graph_backend=None)
    starts, dtypes = torch.tensor([0, *q_lens]).cumsum(0), (torch.bfloat16, torch.bfloat16)
    chosen = real._determine_auto_backend(wrapper, starts, 0, False, custom, *dtypes, 64, 64)
    mask = Mask.CUSTOM if custom else Mask.CAUSAL
    case = case_of("AUTO_PAGED", step(Mode.EXTEND, *((q_len, q_len + 3) for q_len in q_lens)), mask=mask)
    words: list[str] = []
    monkeypatch.setattr(auto.ChoosingWrapper, "run", lambda self, **_: words.append(self._wrapper._backend))
    run(case)
    assert words[0] == chosen
