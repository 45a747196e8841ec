"""The runs of FlashInfer's wrappers as functions: native ops that take the arguments of a plan and of its run together.

Names are FlashInfer's. `planned_lengths` and `planned_indptr` are the copies that a plan keeps in its workspace, which
kernels read in addition to the batch's tensors.
"""

import ctypes
from typing import Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.ops import (
    merge_state_in_place,
    trtllm_batch_context_with_kv_cache,
    trtllm_ragged_attention_deepseek,
)


def lengths_of_pages(indptr: torch.Tensor, last_page_len: torch.Tensor, page_size: int) -> torch.Tensor:
    """Return the lengths of requests from their numbers of pages, as a plan does (flashinfer/page.py, get_seq_lens).

    A request without pages has the length of its last page; in a kernel it is 0 (include/flashinfer/page.cuh).
    """
    return (indptr.diff() - 1).clamp(min=0) * page_size + last_page_len


def check_rows(rows: int, planned: int) -> None:
    """Raise ValueError for queries of another number of rows than planned, as FlashInfer does."""
    if rows != planned:
        raise ValueError(f"q.shape[0] ({rows}) does not match qo_indptr[-1] ({planned})")


def page_ids(indices: torch.Tensor, begin: int, count: int) -> torch.Tensor:
    """Return `count` page ids from index `begin` on, read by address as a kernel does, even past the end."""
    ids = (ctypes.c_int32 * count).from_address(indices.data_ptr() + begin * indices.itemsize)
    return torch.tensor(ids[:], dtype=torch.int32)


def paged_run(
    *,
    out: torch.Tensor,
    q: torch.Tensor,
    paged_kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    qo_indptr: torch.Tensor,
    paged_kv_indptr: torch.Tensor,
    paged_kv_indices: torch.Tensor,
    paged_kv_last_page_len: torch.Tensor,
    planned_indptr: torch.Tensor,
    planned_lengths: torch.Tensor,
    page_size: int,
    sm_scale: float,
    causal: bool,
    kv_layout: str,
    by_plan: bool = False,
    v_scale: float = 1.0,
    window_left: int = -1,
    packed_custom_mask: torch.Tensor | None = None,
    mask_indptr: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    planned_rows: int | None = None,
) -> None:
    """Attend to a paged cache as FlashInfer's kernels of a planned batch do; all metadata is int32 on the device.

    Request b has the rows of `q` from qo_indptr[b] on, and the pages of `paged_kv_indices` from paged_kv_indptr[b] on;
    its last page has paged_kv_last_page_len[b] keys. FA3 takes lengths and pages from its plan alone (`by_plan`). FA2
    takes them from the batch, but sees no page beyond the planned ones, which make up its chunks of keys (FlashInfer
    0.7.2: include/flashinfer/attention/scheduler.cuh and prefill.cuh). `packed_custom_mask` is uint8 with a bit for
    each row and key; the bits of request b begin with byte mask_indptr[b]. Raises ValueError unless there are
    `planned_rows`, if given.
    """
    check_rows(q.shape[0], q.shape[0] if planned_rows is None else planned_rows)
    if by_plan:
        indptr, lengths = planned_indptr, planned_lengths
    else:
        indptr, planned = paged_kv_indptr, (planned_lengths + page_size - 1) // page_size * page_size
        lengths = torch.minimum(lengths_of_pages(indptr, paged_kv_last_page_len, page_size), planned)
        lengths = lengths * (indptr.diff() > 0)
    counts = ((lengths + page_size - 1) // page_size).tolist()
    table = torch.zeros(len(counts), max(counts, default=0), dtype=torch.int32)
    for row, (begin, count) in enumerate(zip(indptr.tolist()[:-1], counts, strict=True)):
        table[row, :count] = page_ids(paged_kv_indices, begin, count)
    trtllm_batch_context_with_kv_cache(
        # The output's dtype can represent every float8.
        query=q if q.itemsize > 1 else q.to(out.dtype),
        kv_cache=paged_kv_cache,
        workspace_buffer=q,
        block_tables=table,
        seq_lens=lengths,
        max_q_len=0,
        max_kv_len=0,
        bmm1_scale=sm_scale,
        bmm2_scale=v_scale,
        batch_size=len(counts),
        cum_seq_lens_q=qo_indptr,
        cum_seq_lens_kv=indptr,
        window_left=window_left,
        out=out,
        kv_layout=kv_layout,
        sinks=sinks,
        causal=causal,
        packed_custom_mask=packed_custom_mask,
        mask_indptr=mask_indptr,
        lse=lse,
    )


def ragged_run(
    *,
    out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    sm_scale: float,
    causal: bool,
    window_left: int = -1,
    lse: torch.Tensor | None = None,
    planned_rows: int | None = None,
    leaves_empty_rows: bool = False,
) -> None:
    """Attend to packed keys, as FlashInfer's FA2 does: rows without keys are 0, with an LSE of -inf, or stay.

    q [tokens, heads, dim], k and v [kv tokens, kv heads, dim], offsets int32 [requests + 1]; lse [tokens, heads] in
    base 2. Raises ValueError unless there are `planned_rows`, if given.
    """
    check_rows(q.shape[0], q.shape[0] if planned_rows is None else planned_rows)
    rows = slice(int(qo_indptr[0]), int(qo_indptr[-1]))
    if not leaves_empty_rows:
        out[rows] = 0
    if not leaves_empty_rows and lse is not None:
        lse[rows] = -torch.inf
    trtllm_ragged_attention_deepseek(
        query=q,
        key=k,
        value=v,
        workspace_buffer=q,
        seq_lens=kv_indptr.diff(),
        max_q_len=0,
        max_kv_len=0,
        bmm1_scale=sm_scale,
        bmm2_scale=1.0,
        o_sf_scale=1.0,
        batch_size=len(kv_indptr) - 1,
        window_left=window_left,
        cum_seq_lens_q=qo_indptr,
        cum_seq_lens_kv=kv_indptr,
        enable_pdl=False,
        is_causal=causal,
        return_lse=lse is not None,
        out=out,
        lse=lse,
    )


def merge_states(
    *,
    v: torch.Tensor,
    s: torch.Tensor,
    v_a: torch.Tensor,
    s_a: torch.Tensor,
    v_b: torch.Tensor,
    s_b: torch.Tensor,
) -> None:
    """Merge two states into v [tokens, heads, dim] and s [tokens, heads] in base 2, as FlashInfer's merge_state."""
    v.copy_(v_a)
    s.copy_(s_a)
    merge_state_in_place(v, s, v_b, s_b)


_RESULTS: Final = frozenset({"out", "lse"})

PAGED_RUNS: Final = {
    name: Op(name, paged_run, _RESULTS)
    for name in ("BatchDecodeWithPagedKVCacheWrapper.run", "BatchPrefillWithPagedKVCacheWrapper.run")
}

RAGGED_RUN: Final = Op("BatchPrefillWithRaggedKVCacheWrapper.run", ragged_run, _RESULTS)

MERGE_STATES: Final = Op("merge_state", merge_states, frozenset({"v", "s"}))

OPS: Final = (*PAGED_RUNS.values(), RAGGED_RUN, MERGE_STATES)
"""The runs, and FlashInfer's function that merges their results."""
