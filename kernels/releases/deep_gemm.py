"""DeepGEMM below a release: its functions on native ops that trust the same arguments (csrc/apis/attention.hpp)."""

from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.sparse_ops import convert_positions_to_slots, fp8_mqa_logits, fp8_paged_mqa_logits
from attnfuzz.kernels.releases.stand_ins import launch

_ALIGNED: Final = 256
"""The alignment of rows of scores, in elements (DeepGEMM: csrc/apis/attention.hpp)."""

_SPLIT: Final = 256
"""The keys of a unit of work in a schedule (DeepGEMM: csrc/apis/attention.hpp, split_kv)."""


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
    check_contiguous("context_lens", context_lens)
    if len(context_lens) != batch or len(block_table) != batch:
        raise ValueError(f"q has {batch} requests, context_lens {len(context_lens)}, block_table {len(block_table)}")
    lengths, table = lengths_of_rows(context_lens, next_n), block_table.repeat_interleave(next_n, 0)
    _read_as_unsigned(lengths, table, kv_cache.shape[1])
    fp8_paged_mqa_logits(
        q.flatten(0, 1), kv_cache.flatten(1), weights, lengths, table, logits, page_size=kv_cache.shape[1], next_n=1
    )
    columns = torch.arange(logits.shape[1])
    work = torch.arange(batch).repeat_interleave(next_n)[:, None] << 32 | columns // _SPLIT
    first, end = (int(row[0]) << 32 | int(row[1]) for row in (schedule[0], schedule[-1]))
    logits[(columns >= lengths[:, None]) | (work < first) | (work >= end)] = torch.nan


def lengths_of_rows(context_lens: torch.Tensor, next_n: int) -> torch.Tensor:
    """Return the number of keys of each row, int32 [batch * next_n], which are given, or follow from its request's."""
    if context_lens.dim() == 2 and context_lens.shape[1] == next_n:
        return context_lens.flatten()
    ends = torch.arange(1 - next_n, 1, dtype=torch.int32)
    return (context_lens.reshape(-1, 1) + ends).clamp(min=0).flatten()


def check_contiguous(name: str, tensor: torch.Tensor) -> None:
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
    check_contiguous("context_lens", context_lens)
    units = -(-context_lens.reshape(len(context_lens), -1)[:, -1].clamp(min=0).long() // _SPLIT)
    ends = units.cumsum(0)
    work = torch.arange(len(schedule)) * int(ends[-1]) // (len(schedule) - 1)
    request = torch.searchsorted(ends, work, right=True)
    before = torch.cat((torch.zeros(1, dtype=torch.int64), ends))[request]
    schedule.copy_(torch.stack((request, work - before), 1))


LOGITS: Final = Op("fp8_mqa_logits", _logits, frozenset({"logits"}))
PAGED_LOGITS: Final = Op("fp8_paged_mqa_logits", _paged_logits, frozenset({"logits"}))
SCHEDULE: Final = Op("get_paged_mqa_logits_metadata", _schedule, frozenset({"schedule"}), plans=True)

OPS: Final = (LOGITS, PAGED_LOGITS, SCHEDULE)


def _made_logits(rows: int, width: int) -> torch.Tensor:
    return torch.empty(rows, -(-width // _ALIGNED) * _ALIGNED, dtype=torch.float32)[:, :width]


def mqa_logits(
    q: Any,
    kv: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    width: int | None = None,
    *,
    clean_logits: bool = False,
) -> torch.Tensor:
    """Stand in for fp8_mqa_logits; since vLLM 0.33.0, rows of `width` begin with their own first key."""
    assert not clean_logits
    queries, (keys, scales) = q[0] if isinstance(q, tuple) else q, kv
    logits = _made_logits(len(queries), len(keys) if width is None else width)
    launch(
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


def paged_mqa_logits(
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
    """Stand in for fp8_paged_mqa_logits."""
    assert not clean_logits
    queries = q[0] if isinstance(q, tuple) else q
    logits = _made_logits(queries.shape[0] * queries.shape[1], max_model_len)
    launch(
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


def make_schedule(context_lens: torch.Tensor, _page_size: int, parts: int) -> torch.Tensor:
    """Stand in for get_paged_mqa_logits_metadata: return a schedule for `parts` multiprocessors."""
    schedule = torch.empty(parts + 1, 2, dtype=torch.int32)
    launch(SCHEDULE, context_lens=context_lens, schedule=schedule)
    return schedule
