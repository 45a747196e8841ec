"""Runs of planned wrappers are judged by what plan and run name, not by what a server meant."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from small_cases import run

pytest.importorskip("flashinfer", reason="the fake wrappers take what the installed ones take")

import direct_on_cpu
import fake_mla
import fake_planned
import fake_wrappers
import wrapper_backends
from traced_objects import in_graph, of_two_requests, traced

from attnfuzz.harness.calls.asked import NamesNothing, NotJudgeable, asked
from attnfuzz.kernels.gpu.wrappers import wrapper
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Mask, Scales
from attnfuzz.reference.geometry import KvLayout

# FlashInfer, and the question which GPU is there, start processes.
pytestmark = pytest.mark.slow

PAGED = f"{wrapper_backends.__file__}:FA2_PAGED"
MLA = f"{direct_on_cpu.__file__}:MLA_FA2"
SPARSE = f"{direct_on_cpu.__file__}:FA2_BLOCK_SPARSE"
BACKENDS = ("FA2_PAGED", "FA2_RAGGED", "BATCH_DECODE", "FA2_SINKS", "CUDA_GRAPH_DECODE")


@pytest.fixture(autouse=True)
def _small_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose size follows from nothing have 128 MiB."""
    monkeypatch.setattr(wrapper, "RECOMMENDED", wrapper.WorkspaceNeed(floats=1 << 18, ints=1 << 16))


def of_last(calls: CallCase) -> CallCase:
    return asked(calls, len(calls.calls) - 1, wrapper_backends.FA2_PAGED.contract)


def doubled(monkeypatch: pytest.MonkeyPatch, kind: Any = fake_wrappers._Wrapper) -> None:
    """Let plans double their scale: a mistake of the library."""
    right = kind.plan

    def plan(self: Any, **arguments: Any) -> None:
        right(self, **{**arguments, "sm_scale": 2 * arguments["sm_scale"]})

    monkeypatch.setattr(kind, "plan", plan)


def with_list(calls: CallCase, name: str, first: int) -> CallCase:
    """The calls, with another first entry of a planned list."""
    buffers = tuple(
        replace(buffer, values=(first, *(buffer.values or ())[1:])) if buffer.name == name else buffer
        for buffer in calls.buffers
    )
    return replace(calls, buffers=buffers)


@pytest.mark.parametrize("layout", list(KvLayout))
@pytest.mark.parametrize("name", BACKENDS)
def test_a_library_that_is_wrong_fails_by_its_own_arguments(
    name: str, layout: KvLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = of_two_requests(f"{wrapper_backends.__file__}:{name}")
    case = replace(case, geometry=replace(case.geometry, kv_layout=layout), scales=Scales(k=1.5, v=0.5))
    _, calls = traced(case, tmp_path)
    assert run(of_last(calls)).observations == ()
    assert run(of_last(calls)).rows
    doubled(monkeypatch)
    assert run(of_last(calls)).observations


@pytest.mark.parametrize(
    ("backend", "kind"),
    [(MLA, fake_mla.BatchMLAPagedAttentionWrapper), (SPARSE, fake_planned.BlockSparseAttentionWrapper)],
)
def test_wrong_runs_on_latents_and_blocks_fail_by_their_own_arguments(
    backend: str, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = of_two_requests(backend)
    case = replace(case, geometry=replace(case.geometry, page_size=16))
    _, calls = traced(case, tmp_path)
    assert run(of_last(calls)).observations == ()
    assert run(of_last(calls)).rows
    doubled(monkeypatch, kind)
    assert run(of_last(calls)).observations


def test_more_keys_than_planned_pages_hold_are_the_callers(tmp_path: Path) -> None:
    _, calls = traced(of_two_requests(MLA), tmp_path)
    with pytest.raises(NamesNothing, match="request 0 was planned with 9999 keys, and its 40 pages hold 40"):
        of_last(with_list(calls, "kv_len_arr", 9999))


@pytest.mark.parametrize(
    ("name", "first", "says"),
    [("indices", 999, "row 0 was planned with block 999 of keys"), ("indptr", 7, "does not ascend from 0")],
)
def test_blocks_outside_of_the_matrix_are_the_callers(name: str, first: int, says: str, tmp_path: Path) -> None:
    _, calls = traced(of_two_requests(SPARSE), tmp_path)
    with pytest.raises(NamesNothing, match=says):
        of_last(with_list(calls, name, first))


def test_a_caller_that_is_wrong_is_followed(tmp_path: Path) -> None:
    _, calls = traced(of_two_requests(PAGED), tmp_path)
    wrong = tuple(
        replace(call, arguments={**call.arguments, "sm_scale": 0.5}) if call.op.endswith(".plan") else call
        for call in calls.calls
    )
    calls = replace(calls, calls=wrong)
    assert run(calls).observations
    assert run(of_last(calls)).observations == ()


def test_a_replay_is_judged_by_the_arguments_that_its_graph_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, calls = traced(in_graph(PAGED), tmp_path)
    assert run(of_last(calls)).observations == ()
    doubled(monkeypatch)
    assert run(of_last(calls)).observations


def test_a_page_id_outside_of_the_pool_is_the_callers(tmp_path: Path) -> None:
    _, calls = traced(of_two_requests(PAGED), tmp_path)
    with pytest.raises(NamesNothing, match="request 0 was planned with page id 9999, and the pool has"):
        of_last(with_list(calls, "kv_indices", 9999))


def test_a_run_under_a_mask_has_no_answer_of_this_kind(tmp_path: Path) -> None:
    _, calls = traced(of_two_requests(PAGED, mask=Mask.CUSTOM), tmp_path)
    with pytest.raises(NotJudgeable, match="custom_mask"):
        of_last(calls)
