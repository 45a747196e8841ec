"""Stand-ins for the kernels of the indexer that are compiled for GPUs, with the same contracts.

They are vLLM's own (csrc/cache_kernels.cu, csrc/sampler.cu, csrc/topk.cu) and DeepGEMM's (csrc/apis/attention.hpp).
"""

from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.sparse_ops import (
    indexer_k_quant_and_cache,
    top_k_per_row,
)
from attnfuzz.kernels.native.transform_ops import gather_cache
from attnfuzz.kernels.releases import deep_gemm as library
from attnfuzz.kernels.releases.deep_gemm import check_contiguous, lengths_of_rows
from attnfuzz.kernels.releases.sparse_latents import ATTEND
from attnfuzz.kernels.releases.stand_ins import launch


def _write(*, kv_cache: torch.Tensor, **arguments: Any) -> None:
    indexer_k_quant_and_cache(kv_cache=kv_cache.flatten(1), page_size=kv_cache.shape[1], powers=True, **arguments)


def _gather(
    *,
    kv_cache: torch.Tensor,
    dst_k: torch.Tensor,
    dst_scale: torch.Tensor,
    block_table: torch.Tensor,
    cu_seq_lens: torch.Tensor,
) -> None:
    """Copy the keys of each request, and their scales, as bits. Rows behind the end of `dst_k` are left out."""
    size, dim = kv_cache.shape[1], dst_k.shape[1]
    pages = kv_cache.flatten(1).view(torch.float8_e4m3fn)
    keys, scales = (
        pages[:, : size * dim].unflatten(1, (size, 1, dim)),
        pages[:, size * dim :].unflatten(1, (size, 1, 4)),
    )
    ends = cu_seq_lens.clamp(max=len(dst_k))
    starts = torch.zeros(len(ends) - 1, dtype=torch.int32)
    for source, target in ((keys, dst_k), (scales, dst_scale)):
        rows = target.view(torch.float8_e4m3fn).unsqueeze(1)
        gather_cache(source, rows, block_table, ends, starts)


def _unpack(
    *, src_cache: torch.Tensor, dst: torch.Tensor, block_table: torch.Tensor, workspace_starts: torch.Tensor
) -> None:
    """Write the latents [rows, 576] of requests, packed in 656 bytes, in bfloat16, each request from its start on."""
    rows = torch.empty(len(dst), 1, 656, dtype=torch.uint8)
    ends = torch.cat((workspace_starts, torch.full_like(workspace_starts[:1], len(dst))))
    gather_cache(
        src_cache.view(torch.float8_e4m3fn).unsqueeze(2),
        rows.view(torch.float8_e4m3fn),
        block_table,
        ends,
        torch.zeros_like(workspace_starts),
    )
    numbers, scales, rope = (each.contiguous() for each in rows.squeeze(1).split([512, 16, 128], dim=1))
    tiles = numbers.view(torch.float8_e4m3fn).float().unflatten(1, (4, 128))
    dst[:, :512] = (tiles * scales.view(torch.float32).unsqueeze(-1)).flatten(1).bfloat16()
    dst[:, 512:] = rope.view(torch.bfloat16)


def _top_k_prefill(
    *, logits: torch.Tensor, row_starts: torch.Tensor, row_ends: torch.Tensor, indices: torch.Tensor
) -> None:
    top_k_per_row(logits, row_ends - row_starts, indices, row_starts)


def _top_k_decode(
    *, logits: torch.Tensor, lengths: torch.Tensor, indices: torch.Tensor, longest: int | None = None
) -> None:
    """List the best keys of each row; `lengths` are those of rows, or of requests with the same number of rows."""
    check_contiguous("lengths", lengths)
    if not lengths.numel() or len(logits) % lengths.numel():
        raise ValueError(f"{lengths.numel()} lengths do not fit {len(logits)} rows of logits")
    of_rows = lengths.flatten()
    if len(of_rows) < len(logits):
        of_rows = lengths_of_rows(lengths, len(logits) // len(of_rows))
    top_k_per_row(logits, of_rows.clamp(0, longest).int(), indices)


WRITE: Final = Op("indexer_k_quant_and_cache", _write, frozenset({"kv_cache"}))
GATHER: Final = Op("cp_gather_indexer_k_quant_cache", _gather, frozenset({"dst_k", "dst_scale"}))
UNPACK: Final = Op("cp_gather_and_upconvert_fp8_kv_cache", _unpack, frozenset({"dst"}))
TOP_K_PREFILL: Final = Op("top_k_per_row_prefill", _top_k_prefill, frozenset({"indices"}))
TOP_K_DECODE: Final = Op("top_k_per_row_decode", _top_k_decode, frozenset({"indices"}))

OPS: Final = (WRITE, GATHER, UNPACK, *library.OPS, TOP_K_PREFILL, TOP_K_DECODE, ATTEND)


def _write_keys(
    k: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor, quant_block_size: int, scale_fmt: str
) -> None:
    assert (quant_block_size, scale_fmt) == (k.shape[1], "ue8m0")
    launch(WRITE, k=k, kv_cache=kv_cache, slot_mapping=slot_mapping)


def _gather_keys(*arguments: torch.Tensor) -> None:
    names = ("kv_cache", "dst_k", "dst_scale", "block_table", "cu_seq_lens")
    launch(GATHER, **dict(zip(names, arguments, strict=True)))


def _unpack_latents(
    src_cache: torch.Tensor,
    dst: torch.Tensor,
    block_table: torch.Tensor,
    workspace_starts: torch.Tensor,
    batch_size: int,
    *host: torch.Tensor | None,
) -> None:
    if not len(block_table) == len(workspace_starts) == batch_size:
        raise RuntimeError(
            f"{len(block_table)} tables and {len(workspace_starts)} starts do not fit {batch_size} requests"
        )
    assert all(each is None for each in host)
    launch(UNPACK, src_cache=src_cache, dst=dst, block_table=block_table, workspace_starts=workspace_starts)


def _prefill_top_k(
    logits: torch.Tensor, row_starts: torch.Tensor, row_ends: torch.Tensor, indices: torch.Tensor, *_: int
) -> None:
    launch(TOP_K_PREFILL, logits=logits, row_starts=row_starts, row_ends=row_ends, indices=indices)


def _decode_top_k(logits: torch.Tensor, _: int, lengths: torch.Tensor, indices: torch.Tensor, *_rest: int) -> None:
    launch(TOP_K_DECODE, logits=logits, lengths=lengths, indices=indices)


def _bounded_top_k(
    logits: torch.Tensor, lengths: torch.Tensor, indices: torch.Tensor, _workspace: object, _k: int, longest: int
) -> None:
    """Stand in for persistent_topk and cooperative_topk, which look at no more than `longest` keys of a row."""
    launch(TOP_K_DECODE, logits=logits, lengths=lengths, indices=indices, longest=longest)


def _large_top_k(logits: torch.Tensor, indices: torch.Tensor, lengths: torch.Tensor, row_starts: None) -> None:
    assert row_starts is None
    launch(TOP_K_DECODE, logits=logits, lengths=lengths, indices=indices)


_OF_VLLM: Final = {
    "top_k_per_row_prefill": _prefill_top_k,
    "top_k_per_row_decode": _decode_top_k,
    "persistent_topk": _bounded_top_k,
    "cooperative_topk": _bounded_top_k,
    "large_context_topk": _large_top_k,
}


_OF_DEEP_GEMM: Final = {
    "_fp8_mqa_logits_impl": library.mqa_logits,
    "_fp8_fp4_mqa_logits_impl": library.mqa_logits,
    "_fp8_paged_mqa_logits_impl": library.paged_mqa_logits,
    "_fp8_fp4_paged_mqa_logits_impl": library.paged_mqa_logits,
    "_get_paged_mqa_logits_metadata_impl": library.make_schedule,
}
"""The functions of DeepGEMM by their names in vLLM's utils/deep_gemm.py, which differ between releases."""


def replace_indexer_kernels(deep_gemm: Any, *modules: Any) -> None:
    """Install the stand-ins in vLLM's module for DeepGEMM and its operators. Its `modules` find DeepGEMM installed."""
    library: Any = torch.ops._C  # noqa: SLF001 - the name of vLLM's library
    for name, function in _OF_VLLM.items():
        setattr(library, name, function)
    library = torch.ops._C_cache_ops  # noqa: SLF001
    library.indexer_k_quant_and_cache, library.cp_gather_indexer_k_quant_cache = _write_keys, _gather_keys
    library.cp_gather_and_upconvert_fp8_kv_cache = _unpack_latents
    for name, function in _OF_DEEP_GEMM.items():
        if hasattr(deep_gemm, name):
            setattr(deep_gemm, name, function)
    for module in modules:
        for name in ("has_deep_gemm", "is_deep_gemm_supported"):
            if hasattr(module, name):
                setattr(module, name, lambda: True)
