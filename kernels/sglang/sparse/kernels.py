"""Stand-ins for the compiled kernels of sparse attention below SGLang: top-k, the indexer's write, FlashMLA.

A file below sglang/ is that of SGLang 0.5.23 unless another version is named.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.sparse_ops import (
    convert_positions_to_offsets,
    convert_positions_to_slots,
    indexer_k_quant_and_cache,
    top_k_per_row,
)
from attnfuzz.kernels.releases import deep_gemm
from attnfuzz.kernels.releases.sparse_latents import ATTEND, launch_attention
from attnfuzz.kernels.releases.stand_ins import launch

MULTIPROCESSORS: Final = 132
"""Those of an H200."""

_FAR: Final = 1 << 40
"""Added to slots below 0, which no kernel of SGLang skips: they are written far from the cache."""

_LARGEST: Final = (1 << 31) - 1


def _store(*, key: torch.Tensor, cache: torch.Tensor, indices: torch.Tensor) -> None:
    """Quantise keys into the indexer's cache, each with a scale of its own (dsa/fused_store_index_cache.cuh)."""
    slots = torch.where(indices < 0, indices + _FAR, indices).long()
    indexer_k_quant_and_cache(key, cache, slots, page_size=cache.shape[1] // (key.shape[1] + 4), powers=False)


def _top_k(
    *,
    score: torch.Tensor,
    lengths: torch.Tensor,
    indices: torch.Tensor,
    row_starts: torch.Tensor | None = None,
) -> None:
    """List the positions of the highest scores of each row (sgl_kernel, fast_topk_v2)."""
    top_k_per_row(score, lengths, indices, row_starts)


def _top_k_slots(
    *,
    score: torch.Tensor,
    lengths: torch.Tensor,
    requests: torch.Tensor,
    table: torch.Tensor,
    slots: torch.Tensor,
    page_size: int = 1,
    row_starts: torch.Tensor | None = None,
    plan: torch.Tensor | None = None,
) -> None:
    """List the slots of the highest scores. A length below 0 is read as unsigned, and ends far behind the table.

    sgl_kernel, fast_topk_transform_fused; deepseek_v4/topk_v2.cuh, transform_paged. A row of which the `plan` has
    another length is not written.
    """
    positions, made = torch.empty_like(slots), torch.empty_like(slots)
    top_k_per_row(score, lengths, positions, row_starts)
    positions[lengths < 0, 0] = _LARGEST
    convert_positions_to_slots(positions, requests, table, made, page_size=page_size)
    planned = slice(None) if plan is None else plan[1:, 0] == lengths
    slots[planned] = made[planned]


def _top_k_offsets(
    *,
    score: torch.Tensor,
    lengths: torch.Tensor,
    offsets: torch.Tensor,
    slots: torch.Tensor,
    row_starts: torch.Tensor | None = None,
) -> None:
    """List the offsets of the highest scores (deepseek_v4/topk_v2.cuh, transform_ragged)."""
    positions = torch.empty_like(slots)
    top_k_per_row(score, lengths, positions, row_starts)
    convert_positions_to_offsets(positions, offsets, slots)


def _plan(*, lengths: torch.Tensor, plan: torch.Tensor) -> None:
    """Keep the lengths for which a schedule is made: a kernel that gets another batch's does other work."""
    plan[0] = len(lengths)
    plan[1:, 0] = lengths


STORE: Final = Op("fused_store_index_k_cache", _store, frozenset({"cache"}))
TOP_K: Final = Op("fast_topk_v2", _top_k, frozenset({"indices"}))
TOP_K_SLOTS: Final = Op("topk_transform_paged", _top_k_slots, frozenset({"slots"}))
TOP_K_OFFSETS: Final = Op("topk_transform_ragged", _top_k_offsets, frozenset({"slots"}))
PLAN: Final = Op("topk_plan", _plan, frozenset({"plan"}), plans=True)

OPS: Final = (STORE, TOP_K, TOP_K_SLOTS, TOP_K_OFFSETS, ATTEND, PLAN)


# The functions of sgl_kernel


def _fast_topk(
    score: torch.Tensor, lengths: torch.Tensor, topk: int, row_starts: torch.Tensor | None = None
) -> torch.Tensor:
    indices = torch.empty(len(score), topk, dtype=torch.int32)
    launch(TOP_K, score=score, lengths=lengths, indices=indices, row_starts=row_starts)
    return indices


def _fast_topk_transform_fused(
    score: torch.Tensor,
    lengths: torch.Tensor,
    page_table_size_1: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    topk: int,
    row_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """Stand in for the kernel whose rows have the pages of their request, in a table with slots for pages.

    csrc/elementwise/topk.cu: rows of a decode are requests, and those of a prefill belong to that of cu_seqlens_q.
    """
    batch = len(cu_seqlens_q) - 1
    if len(page_table_size_1) != batch:
        raise RuntimeError(f"page_table_size_1 has {len(page_table_size_1)} rows, cu_seqlens_q {batch} requests")
    requests = torch.arange(len(score), dtype=torch.int32)
    if row_starts is not None or batch != len(score):
        requests = (torch.searchsorted(cu_seqlens_q, requests, right=True) - 1).int()
    slots = torch.empty(len(score), topk, dtype=torch.int32)
    launch(
        TOP_K_SLOTS,
        score=score,
        lengths=lengths,
        requests=requests,
        table=page_table_size_1,
        slots=slots,
        row_starts=row_starts,
    )
    return slots


def _fast_topk_transform_ragged_fused(
    score: torch.Tensor,
    lengths: torch.Tensor,
    topk_indices_offset: torch.Tensor,
    topk: int,
    row_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    slots = torch.empty(len(score), topk, dtype=torch.int32)
    launch(TOP_K_OFFSETS, score=score, lengths=lengths, offsets=topk_indices_offset, slots=slots, row_starts=row_starts)
    return slots


# The modules that SGLang compiles


def _topk_plan(seq_lens: torch.Tensor, metadata: torch.Tensor, _threshold: int) -> None:
    launch(PLAN, lengths=seq_lens, plan=metadata)


def _topk_transform_paged(
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_tables: torch.Tensor,
    out_page_indices: torch.Tensor,
    page_size: int,
    metadata: torch.Tensor,
    out_raw_indices: torch.Tensor | None = None,
) -> None:
    assert out_raw_indices is None
    launch(
        TOP_K_SLOTS,
        score=scores,
        lengths=seq_lens,
        requests=torch.arange(len(scores), dtype=torch.int32),
        table=page_tables,
        slots=out_page_indices,
        page_size=page_size,
        plan=metadata,
    )


def _topk_transform_ragged(
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    row_starts: torch.Tensor | None,
    out_offsets: torch.Tensor,
    out_indices: torch.Tensor,
) -> None:
    launch(TOP_K_OFFSETS, score=scores, lengths=seq_lens, offsets=out_offsets, slots=out_indices, row_starts=row_starts)


def _stored(key: torch.Tensor, index_k_with_scale: torch.Tensor, out_cache_loc: torch.Tensor) -> None:
    launch(STORE, key=key, cache=index_k_with_scale, indices=out_cache_loc)


_TOP_K_V2: Final = (
    "_jit_topk_v2_module",
    SimpleNamespace(
        topk_plan=_topk_plan,
        topk_transform_paged=_topk_transform_paged,
        topk_transform_ragged=_topk_transform_ragged,
        # Its name before 0.5.20.
        topk_transform=_topk_transform_paged,
    ),
)

_STORES: Final = ("_jit_dsa_fused_store_module", SimpleNamespace(fused_store_index_k_cache=_stored))

COMPILED: Final[Mapping[str, tuple[str, SimpleNamespace]]] = {
    # 0.5.15
    "sglang.jit_kernel.dsv4.topk": _TOP_K_V2,
    "sglang.jit_kernel.fused_store_index_cache": _STORES,
    # 0.5.17
    "sglang.kernels.ops.attention.dsv4.topk": _TOP_K_V2,
    "sglang.kernels.ops.attention.fused_store_index_cache": _STORES,
    # 0.5.23
    "sglang.kernels.ops.kvcache.dsa_fused_store_index_cache": _STORES,
}
"""Modules of releases, with the functions that compile a module for them, and the results of these here."""


# FlashMLA, behind the signatures of kernels/ops/attention/flash_mla_interface.py


def _flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = 512,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
) -> tuple[torch.Tensor, None, None]:
    out = torch.empty(*q.shape[:2], d_v, dtype=q.dtype)
    launch_attention(q, kv, indices, out, sm_scale, attn_sink, topk_length)
    return out, None, None


def _flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    head_dim_v: int,
    tile_scheduler_metadata: torch.Tensor,
    num_splits: torch.Tensor,
    softmax_scale: float,
    indices: torch.Tensor,
    *,
    is_fp8_kvcache: bool,
    **_format: str,
) -> tuple[torch.Tensor, None]:
    """Stand in for the decode of packed latents, which attends to the keys in lists, whatever its schedule."""
    assert is_fp8_kvcache
    # Sparse decodes ignore the lengths (sgl-flash-mla 1.0.0: flash_mla/flash_mla_interface.py).
    del block_table, cache_seqlens, tile_scheduler_metadata
    rows = len(q)
    if len(num_splits) != rows + 1:
        # csrc/api/sparse_decode.h: KU_CHECK_SHAPE
        raise RuntimeError(f"num_splits must have shape (b+1): q has {rows} rows, num_splits {len(num_splits)}")
    out = torch.empty(*q.shape[:-1], head_dim_v, dtype=q.dtype)
    keys = k_cache.view(torch.uint8).flatten(0, 2)
    launch_attention(q.squeeze(1), keys, indices, out.squeeze(1), softmax_scale)
    return out, None


_PARTS: Final = 78
"""Rows of a schedule for decodes on an H200 (FlashMLA: get_mla_metadata, num_sm_parts)."""


def _get_mla_metadata(cache_seqlens: torch.Tensor, *_: Any, **_options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand in for the schedule of a decode, of which only the sizes matter here."""
    return torch.zeros(_PARTS, 8, dtype=torch.int32), torch.zeros(len(cache_seqlens) + 1, dtype=torch.int32)


_FLASH_MLA: Final = {
    "flash_mla_sparse_fwd": _flash_mla_sparse_fwd,
    "flash_mla_with_kvcache": _flash_mla_with_kvcache,
    "get_mla_metadata": _get_mla_metadata,
}

LIBRARIES: Final = {
    "deep_gemm": {
        "get_num_sms": lambda: MULTIPROCESSORS,
        "fp8_mqa_logits": deep_gemm.mqa_logits,
        "fp8_paged_mqa_logits": deep_gemm.paged_mqa_logits,
        "get_paged_mqa_logits_metadata": deep_gemm.make_schedule,
    },
    "sgl_kernel.flash_mla": _FLASH_MLA,
    "sglang.kernels.ops.attention.flash_mla_interface": _FLASH_MLA,
}
"""The compiled libraries that it imports, and the module around FlashMLA, with their functions."""

OF_SGL_KERNEL: Final = {
    "fast_topk_v2": _fast_topk,
    "fast_topk_transform_fused": _fast_topk_transform_fused,
    "fast_topk_transform_ragged_fused": _fast_topk_transform_ragged_fused,
}
"""Functions of sgl_kernel, whose module other kinds of backends share."""
