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

from attnfuzz.harness.calls.asked import NamesNothing, NotJudgeable, asked, parts_of
from attnfuzz.kernels.gpu.wrappers import wrapper
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case import Mask, PageOrder, Pages, Scales
from attnfuzz.reference.geometry import KvLayout

# FlashInfer, and the question which GPU is there, start processes.
pytestmark = pytest.mark.slow

PAGED = f"{wrapper_backends.__file__}:FA2_PAGED"
MLA = f"{direct_on_cpu.__file__}:MLA_FA2"
LEVELS = f"{direct_on_cpu.__file__}:CASCADE_LEVELS"
VARIABLE = f"{direct_on_cpu.__file__}:FA2_VARIABLE_SPARSE"
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
    ("name", "kind", "parts"),
    [
        ("MLA_FA2", fake_mla.BatchMLAPagedAttentionWrapper, 1),
        ("BATCH_ATTENTION", fake_planned.BatchAttention, 1),
        ("CASCADE_LEVELS", fake_planned.MultiLevelCascadeAttentionWrapper, 1),
        ("FA2_BLOCK_SPARSE", fake_planned.BlockSparseAttentionWrapper, 1),
        # A mask for each KV head.
        ("FA2_VARIABLE_SPARSE", fake_planned.VariableBlockSparseAttentionWrapper, 2),
        # Prefills and decodes.
        ("BATCH_POD", fake_planned.BatchPODWithPagedKVCacheWrapper, 2),
        ("POD", fake_planned.PODWithPagedKVCacheWrapper, 2),
    ],
)
def test_each_part_of_a_wrong_run_fails_by_its_own_arguments(
    name: str, kind: Any, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = of_two_requests(f"{direct_on_cpu.__file__}:{name}")
    heads = {"q_heads": 4, "kv_heads": 2} if "VARIABLE" in name else {}
    case = replace(case, geometry=replace(case.geometry, page_size=16, kv_layout=KvLayout.HND, **heads))
    _, calls = traced(case, tmp_path)
    index = next(n for n, call in enumerate(calls.calls) if call.op.endswith(".run"))
    contract = wrapper_backends.FA2_PAGED.contract
    judged = [asked(calls, index, contract, part=part) for part in range(parts_of(calls, index))]
    assert len(judged) == parts
    for part in judged:
        assert run(part).observations == ()
        assert run(part).rows
    # The only prefill of POD has its scale from the run.
    doubled(monkeypatch, kind)
    for part in judged[name == "POD" :]:
        assert run(part).observations


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SHARED_PREFIX_DECODE", fake_planned.BatchDecodeWithSharedPrefixPagedKVCacheWrapper),
        ("SHARED_PREFIX_PREFILL", fake_planned.BatchPrefillWithSharedPrefixPagedKVCacheWrapper),
    ],
)
def test_keys_of_a_prefix_in_tensors_of_its_own_precede_those_on_pages(
    name: str, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = of_two_requests(f"{direct_on_cpu.__file__}:{name}", pages=Pages(order=PageOrder.SHARED_PREFIX))
    _, calls = traced(replace(case, geometry=replace(case.geometry, page_size=16)), tmp_path)
    assert calls.calls[-1].op.endswith(".forward")
    assert run(of_last(calls)).observations == ()
    assert run(of_last(calls)).rows
    right = kind.forward

    def forward(self: Any, **arguments: Any) -> Any:
        return right(self, **{**arguments, "v_shared": 2 * arguments["v_shared"]})

    monkeypatch.setattr(kind, "forward", forward)
    assert run(of_last(calls)).observations


def test_more_keys_than_planned_pages_hold_are_the_callers(tmp_path: Path) -> None:
    _, calls = traced(of_two_requests(MLA), tmp_path)
    with pytest.raises(NamesNothing, match="request 0 was planned with 9999 keys, and its 40 pages hold 40"):
        of_last(with_list(calls, "kv_len_arr", 9999))


@pytest.mark.parametrize(
    ("name", "first", "says"),
    [
        ("last_page_len", 1, "a level before the last one has a page that is not full"),
        ("qo_indptr", 3, "queries in several requests of another level"),
    ],
)
def test_levels_that_are_no_prefixes_of_requests_have_no_answer(
    name: str, first: int, says: str, tmp_path: Path
) -> None:
    case = of_two_requests(LEVELS)
    _, calls = traced(replace(case, geometry=replace(case.geometry, page_size=16)), tmp_path)
    with pytest.raises(NotJudgeable, match=says):
        of_last(with_list(calls, name, first))


def test_blocks_of_another_size_than_the_tensors_are_the_callers(tmp_path: Path) -> None:
    _, calls = traced(of_two_requests(VARIABLE), tmp_path)
    with pytest.raises(
        NamesNothing,
        match="block_col_sz of KV head 0 has 6 blocks of 159 tokens in all, where block_mask_map has 6 and key has 61",
    ):
        of_last(with_list(calls, "block_col_sz", 99))


@pytest.mark.parametrize("option", [{"pos_encoding_mode": "ALIBI"}, {"use_fp16_qk_reduction": True}])
def test_options_that_change_the_result_are_not_ignored(option: dict[str, Any], tmp_path: Path) -> None:
    _, calls = traced(of_two_requests(PAGED), tmp_path)
    planned = (
        replace(call, arguments={**call.arguments, **option}) if call.op.endswith(".plan") else call
        for call in calls.calls
    )
    with pytest.raises(NotJudgeable, match="can't be part of an answer"):
        of_last(replace(calls, calls=tuple(planned)))


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
