"""Stand-ins for the kernels of the indexer that are compiled for GPUs, with the same contracts.

They are vLLM's own (csrc/cache_kernels.cu, csrc/sampler.cu, csrc/topk.cu) and DeepGEMM's (csrc/apis/attention.hpp).
"""

from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.sparse_ops import (
    convert_positions_to_slots,
    fp8_mqa_logits,
    fp8_paged_mqa_logits,
    indexer_k_quant_and_cache,
    top_k_per_row,
)
from attnfuzz.kernels.native.transform_ops import gather_cache
from attnfuzz.kernels.releases.stand_ins import current

_ALIGNED: Final = 256
"""The alignment of rows of scores, in elements (DeepGEMM: csrc/apis/attention.hpp)."""

_SPLIT: Final = 256
"""The keys of a unit of work in a schedule (DeepGEMM: csrc/apis/attention.hpp, split_kv)."""


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


def _logits(
    *,
    q: torch.Tensor,
    kv: torch.Tensor,
    kv_scales: torch.Tensor,
    weights: torch.Tensor,
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    logits: torch.Tensor,
) -> None:
    """Score packed keys. Columns outside of a row's keys are undefined: NaN.

    If there are fewer columns than keys, the first column of a row is its first key, otherwise that of all rows.
    """
    starts, ends = cu_seq_len_k_start, cu_seq_len_k_end
    scores = torch.empty(len(q), len(kv))
    fp8_mqa_logits(q, kv, kv_scales, weights, starts, ends, scores)
    logits.fill_(torch.nan)
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        first = 0 if logits.shape[1] < len(kv) else start
        own = scores[row, start:end][: logits.shape[1] - first]
        logits[row, first : first + len(own)] = own


def _paged_logits(
    *,
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule: torch.Tensor,
    logits: torch.Tensor,
) -> None:
    """Score keys in pages, those that the schedule covers. Columns behind a row's keys are undefined: NaN.

    q [batch, next_n, heads, dim]; context_lens [batch], of the last query of each request, or [batch, next_n].
    """
    batch, next_n = q.shape[:2]
    _check_contiguous("context_lens", context_lens)
    if len(context_lens) != batch or len(block_table) != batch:
        raise ValueError(f"q has {batch} requests, context_lens {len(context_lens)}, block_table {len(block_table)}")
    lengths, table = _lengths(context_lens, next_n), block_table.repeat_interleave(next_n, 0)
    _read_as_unsigned(lengths, table, kv_cache.shape[1])
    fp8_paged_mqa_logits(
        q.flatten(0, 1), kv_cache.flatten(1), weights, lengths, table, logits, page_size=kv_cache.shape[1], next_n=1
    )
    columns = torch.arange(logits.shape[1])
    work = torch.arange(batch).repeat_interleave(next_n)[:, None] << 32 | columns // _SPLIT
    first, end = (int(row[0]) << 32 | int(row[1]) for row in (schedule[0], schedule[-1]))
    logits[(columns >= lengths[:, None]) | (work < first) | (work >= end)] = torch.nan


def _lengths(context_lens: torch.Tensor, next_n: int) -> torch.Tensor:
    """Return the number of keys of each row, int32 [batch * next_n], which are given, or follow from its request's."""
    if context_lens.dim() == 2 and context_lens.shape[1] == next_n:
        return context_lens.flatten()
    ends = torch.arange(1 - next_n, 1, dtype=torch.int32)
    return (context_lens.reshape(-1, 1) + ends).clamp(min=0).flatten()


def _check_contiguous(name: str, tensor: torch.Tensor) -> None:
    """Refuse gaps between elements, as DeepGEMM and vLLM's top-k do (vLLM issue 40987, pull request 45292)."""
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, and has strides {tensor.stride()} for {tuple(tensor.shape)}")


def _read_as_unsigned(lengths: torch.Tensor, table: torch.Tensor, page_size: int) -> None:
    """Read the last page of rows whose length is negative, as kernels do that take lengths as unsigned numbers.

    See vLLM issue 51593.
    """
    rows = (lengths < 0).nonzero()[:, 0].int()
    last = torch.full((len(rows), 1), (1 << 31) - 1, dtype=torch.int32)
    convert_positions_to_slots(last, rows, table, torch.empty_like(last), page_size=page_size)


def _schedule(*, context_lens: torch.Tensor, schedule: torch.Tensor) -> None:
    """Divide the keys of a batch, in units of 256, among the rows of a schedule: request and unit where each begins."""
    _check_contiguous("context_lens", context_lens)
    units = -(-context_lens.reshape(len(context_lens), -1)[:, -1].clamp(min=0).long() // _SPLIT)
    ends = units.cumsum(0)
    work = torch.arange(len(schedule)) * int(ends[-1]) // (len(schedule) - 1)
    request = torch.searchsorted(ends, work, right=True)
    before = torch.cat((torch.zeros(1, dtype=torch.int64), ends))[request]
    schedule.copy_(torch.stack((request, work - before), 1))


def _top_k_prefill(
    *, logits: torch.Tensor, row_starts: torch.Tensor, row_ends: torch.Tensor, indices: torch.Tensor
) -> None:
    top_k_per_row(logits, row_ends - row_starts, indices, row_starts)


def _top_k_decode(
    *, logits: torch.Tensor, lengths: torch.Tensor, indices: torch.Tensor, longest: int | None = None
) -> None:
    """List the best keys of each row; `lengths` are those of rows, or of requests with the same number of rows."""
    _check_contiguous("lengths", lengths)
    if not lengths.numel() or len(logits) % lengths.numel():
        raise ValueError(f"{lengths.numel()} lengths do not fit {len(logits)} rows of logits")
    of_rows = lengths.flatten()
    if len(of_rows) < len(logits):
        of_rows = _lengths(lengths, len(logits) // len(of_rows))
    top_k_per_row(logits, of_rows.clamp(0, longest).int(), indices)


WRITE: Final = Op("indexer_k_quant_and_cache", _write, frozenset({"kv_cache"}))
GATHER: Final = Op("cp_gather_indexer_k_quant_cache", _gather, frozenset({"dst_k", "dst_scale"}))
LOGITS: Final = Op("fp8_mqa_logits", _logits, frozenset({"logits"}))
PAGED_LOGITS: Final = Op("fp8_paged_mqa_logits", _paged_logits, frozenset({"logits"}))
SCHEDULE: Final = Op("get_paged_mqa_logits_metadata", _schedule, frozenset({"schedule"}), plans=True)
TOP_K_PREFILL: Final = Op("top_k_per_row_prefill", _top_k_prefill, frozenset({"indices"}))
TOP_K_DECODE: Final = Op("top_k_per_row_decode", _top_k_decode, frozenset({"indices"}))

OPS: Final = (WRITE, GATHER, LOGITS, PAGED_LOGITS, SCHEDULE, TOP_K_PREFILL, TOP_K_DECODE)


def _launch(op: Op, **arguments: Any) -> None:
    current(op.name).launch(op, arguments)


def _write_keys(
    k: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor, quant_block_size: int, scale_fmt: str
) -> None:
    assert (quant_block_size, scale_fmt) == (k.shape[1], "ue8m0")
    _launch(WRITE, k=k, kv_cache=kv_cache, slot_mapping=slot_mapping)


def _gather_keys(*arguments: torch.Tensor) -> None:
    names = ("kv_cache", "dst_k", "dst_scale", "block_table", "cu_seq_lens")
    _launch(GATHER, **dict(zip(names, arguments, strict=True)))


def _prefill_top_k(
    logits: torch.Tensor, row_starts: torch.Tensor, row_ends: torch.Tensor, indices: torch.Tensor, *_: int
) -> None:
    _launch(TOP_K_PREFILL, logits=logits, row_starts=row_starts, row_ends=row_ends, indices=indices)


def _decode_top_k(logits: torch.Tensor, _: int, lengths: torch.Tensor, indices: torch.Tensor, *_rest: int) -> None:
    _launch(TOP_K_DECODE, logits=logits, lengths=lengths, indices=indices)


def _bounded_top_k(
    logits: torch.Tensor, lengths: torch.Tensor, indices: torch.Tensor, _workspace: object, _k: int, longest: int
) -> None:
    """Stand in for persistent_topk and cooperative_topk, which look at no more than `longest` keys of a row."""
    _launch(TOP_K_DECODE, logits=logits, lengths=lengths, indices=indices, longest=longest)


def _large_top_k(logits: torch.Tensor, indices: torch.Tensor, lengths: torch.Tensor, row_starts: None) -> None:
    assert row_starts is None
    _launch(TOP_K_DECODE, logits=logits, lengths=lengths, indices=indices)


_OF_VLLM: Final = {
    "top_k_per_row_prefill": _prefill_top_k,
    "top_k_per_row_decode": _decode_top_k,
    "persistent_topk": _bounded_top_k,
    "cooperative_topk": _bounded_top_k,
    "large_context_topk": _large_top_k,
}


def _made_logits(rows: int, width: int) -> torch.Tensor:
    return torch.empty(rows, -(-width // _ALIGNED) * _ALIGNED, dtype=torch.float32)[:, :width]


def _mqa_logits(
    q: Any,
    kv: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    width: int | None = None,
    *,
    clean_logits: bool = False,
) -> torch.Tensor:
    """Stand in for DeepGEMM's function; since 0.33.0 rows of `width` begin with their own first key."""
    assert not clean_logits
    queries, (keys, scales) = q[0] if isinstance(q, tuple) else q, kv
    logits = _made_logits(len(queries), len(keys) if width is None else width)
    _launch(
        LOGITS,
        q=queries,
        kv=keys,
        kv_scales=scales,
        weights=weights,
        cu_seq_len_k_start=starts,
        cu_seq_len_k_end=ends,
        logits=logits,
    )
    return logits


def _paged_mqa_logits(
    q: Any,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule: torch.Tensor,
    max_model_len: int,
    *,
    clean_logits: bool = False,
) -> torch.Tensor:
    assert not clean_logits
    queries = q[0] if isinstance(q, tuple) else q
    logits = _made_logits(queries.shape[0] * queries.shape[1], max_model_len)
    _launch(
        PAGED_LOGITS,
        q=queries,
        kv_cache=kv_cache.squeeze(2),
        weights=weights,
        context_lens=context_lens,
        block_table=block_table,
        schedule=schedule,
        logits=logits,
    )
    return logits


def _made_schedule(context_lens: torch.Tensor, _page_size: int, parts: int) -> torch.Tensor:
    schedule = torch.empty(parts + 1, 2, dtype=torch.int32)
    _launch(SCHEDULE, context_lens=context_lens, schedule=schedule)
    return schedule


_OF_DEEP_GEMM: Final = {
    "_fp8_mqa_logits_impl": _mqa_logits,
    "_fp8_fp4_mqa_logits_impl": _mqa_logits,
    "_fp8_paged_mqa_logits_impl": _paged_mqa_logits,
    "_fp8_fp4_paged_mqa_logits_impl": _paged_mqa_logits,
    "_get_paged_mqa_logits_metadata_impl": _made_schedule,
}
"""The functions of DeepGEMM by their names in vLLM's utils/deep_gemm.py, which differ between releases."""


def replace_indexer_kernels(deep_gemm: Any, *modules: Any) -> None:
    """Install the stand-ins in vLLM's module for DeepGEMM and its operators. Its `modules` find DeepGEMM installed."""
    library: Any = torch.ops._C  # noqa: SLF001 - the name of vLLM's library
    for name, function in _OF_VLLM.items():
        setattr(library, name, function)
    library = torch.ops._C_cache_ops  # noqa: SLF001
    library.indexer_k_quant_and_cache, library.cp_gather_indexer_k_quant_cache = _write_keys, _gather_keys
    for name, function in _OF_DEEP_GEMM.items():
        if hasattr(deep_gemm, name):
            setattr(deep_gemm, name, function)
    for module in modules:
        for name in ("has_deep_gemm", "is_deep_gemm_supported"):
            if hasattr(module, name):
                setattr(module, name, lambda: True)
