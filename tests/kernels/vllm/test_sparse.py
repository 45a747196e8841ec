"""The planners of sparse attention: a server's padded batch, and stand-ins for the indexer's kernels."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from packaging.version import Version

from attnfuzz.harness.export.adapters import Adapters
from attnfuzz.kernels.releases import deep_gemm
from attnfuzz.kernels.sparse.inputs import OpInputs
from attnfuzz.kernels.vllm.engine import ENGINE
from attnfuzz.kernels.vllm.sparse import kernels
from attnfuzz.kernels.vllm.sparse.backend import VllmSparseBackend
from attnfuzz.kernels.vllm.sparse.batch import ServerBuffers, batch_of
from attnfuzz.kernels.vllm.sparse.kinds import SPARSE_KINDS
from attnfuzz.reference.sparse import packed
from attnfuzz.reference.sparse.case import SparseCase, SparseGeometry, SparseMode, SparseOp, SparseRequest, SparseStep


@dataclass
class Metadata:
    """Stands in for a release's CommonAttentionMetadata with some of its fields."""

    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor


def inputs(step: SparseStep) -> OpInputs:
    geometry = SparseGeometry(page_size=4, index_dim=8, powers=True)
    case = SparseCase(
        backend="b", ops=(SparseOp.WRITE, SparseOp.LOGITS, SparseOp.TOP_K), steps=(step,), geometry=geometry
    )
    return OpInputs(case, 0)


def buffers() -> ServerBuffers:
    release = SimpleNamespace(version=Version("0.33.0"))
    module = SimpleNamespace(CommonAttentionMetadata=Metadata)
    return ServerBuffers(SimpleNamespace(release=release, module=lambda _: module), 4, 16, 3)


@pytest.mark.slow
def test_a_script_can_contain_the_stand_ins() -> None:
    def native(function: object) -> str | None:
        place = getattr(function, "__module__", "")
        return str(getattr(function, "__name__", "")) if place.startswith("attnfuzz.kernels.native.") else None

    adapters = Adapters(native)
    for op in kernels.OPS:
        assert not op.own, "traces leave out own ops"
        adapters.add(op.name, op.function)
    assert "attnfuzz" not in adapters.source
    assert "    top_k_per_row(" in adapters.source


@pytest.mark.parametrize("kind", SPARSE_KINDS)
def test_a_kind_of_sparse_attention_is_a_backend_of_a_release(kind: str) -> None:
    assert isinstance(ENGINE.resolve(f"vllm==0.33.0:{kind}"), VllmSparseBackend)


def test_padding_of_a_replayed_step_has_no_tokens_keys_or_slots() -> None:
    verify = SparseStep(
        mode=SparseMode.VERIFY, requests=(SparseRequest(2, 9), SparseRequest(2, 3)), padding=1, replayed=True
    )
    given = inputs(verify)
    made = buffers().metadata(batch_of(given, 1), 9)
    assert made.query_start_loc.tolist() == made.query_start_loc_cpu.tolist() == [0, 2, 4, 4]
    assert made.seq_lens.tolist() == [9, 3, 0]
    assert made.slot_mapping.tolist() == [
        *given.slots_of(0, torch.tensor([7, 8])),
        *given.slots_of(1, torch.tensor([1, 2])),
        -1,
        -1,
    ]
    assert not made.block_table_tensor[2].any()


def test_decodes_come_before_chunks_and_prompts_without_a_prefix_last() -> None:
    requests = (SparseRequest(3, 3), SparseRequest(4, 9), SparseRequest(1, 5))
    assert batch_of(inputs(SparseStep(mode=SparseMode.EXTEND, requests=requests)), 0).order == (2, 1, 0)


def paged(context_lens: torch.Tensor, table: torch.Tensor, schedule: torch.Tensor) -> torch.Tensor:
    batch, next_n = len(context_lens), 2
    cache = torch.zeros(3, 4 * 12, dtype=torch.uint8).unflatten(1, (4, 12))
    cache.flatten(1)[:, 32:].view(torch.float32).fill_(1)
    logits = torch.empty(batch * next_n, 12)
    queries = torch.ones(batch, next_n, 1, 8).to(torch.float8_e4m3fn)
    weights = torch.ones(batch * next_n, 1)
    deep_gemm.PAGED_LOGITS.function(
        q=queries,
        kv_cache=cache,
        weights=weights,
        context_lens=context_lens,
        block_table=table,
        schedule=schedule,
        logits=logits,
    )
    return logits


def scheduled(context_lens: torch.Tensor) -> torch.Tensor:
    schedule = torch.empty(5, 2, dtype=torch.int32)
    deep_gemm.SCHEDULE.function(context_lens=context_lens, schedule=schedule)
    return schedule


TABLE = torch.tensor([[1, 2, 0], [2, 0, 0]], dtype=torch.int32)


@pytest.mark.parametrize("lengths", [[[4, 5], [0, 1]], [5, 1]])
def test_columns_behind_the_keys_of_a_draft_are_undefined(lengths: list[int]) -> None:
    lens = torch.tensor(lengths, dtype=torch.int32)
    assert (~paged(lens, TABLE, scheduled(lens)).isnan()).sum(1).tolist() == [4, 5, 0, 1]


def test_requests_that_the_schedule_does_not_cover_are_not_scored() -> None:
    stale = scheduled(torch.tensor([5], dtype=torch.int32))
    logits = paged(torch.tensor([5, 3], dtype=torch.int32), TABLE, stale)
    assert (~logits.isnan()).any(1).tolist() == [True, True, False, False]


def test_keys_are_gathered_with_their_scales_and_no_further_than_the_workspace() -> None:
    cache = torch.arange(3 * 48).to(torch.uint8).unflatten(0, (3, 4, 12))
    keys, scales = torch.zeros(4, 8, dtype=torch.uint8).view(torch.float8_e4m3fn), torch.zeros(4, 4, dtype=torch.uint8)
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    kernels.GATHER.function(kv_cache=cache, dst_k=keys, dst_scale=scales, block_table=TABLE, cu_seq_lens=starts)
    pages = cache.flatten(1)
    assert keys.view(torch.uint8).tolist() == [*pages[1, :16].view(2, 8).tolist(), *pages[2, :16].view(2, 8).tolist()]
    assert scales.tolist() == [*pages[1, 32:40].view(2, 4).tolist(), *pages[2, 32:40].view(2, 4).tolist()]


def test_packed_latents_are_unpacked_from_the_start_of_each_request_and_rounded() -> None:
    latents = torch.randn(12, 576, generator=torch.Generator().manual_seed(1))
    cache, unpacked = packed.pack(latents).unflatten(0, (3, 4)), torch.zeros(7, 576, dtype=torch.bfloat16)
    starts = torch.tensor([0, 5], dtype=torch.int32)
    kernels.UNPACK.function(src_cache=cache, dst=unpacked, block_table=TABLE, workspace_starts=starts)
    slots = [4, 5, 6, 7, 8, 8, 9]
    assert torch.equal(unpacked, packed.unpack(cache.flatten(0, 1)[slots]).bfloat16())


def test_lengths_with_gaps_between_requests_are_refused() -> None:
    wide = torch.ones(2, 2, dtype=torch.int32)
    with pytest.raises(ValueError, match="context_lens must be contiguous"):
        scheduled(wide[:, :1])
