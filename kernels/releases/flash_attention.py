"""FlashAttention 3 below a release: native ops that trust the same arguments as its kernels, and schedules of batches.

A release's calls are bound to the signature of its own library (`kernels.vllm.flash_attention`,
`kernels.sglang.flash_attention`) and launched as these ops, under the library's names of arguments.
"""

import math
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.ops import trtllm_batch_context_with_kv_cache, trtllm_ragged_attention_deepseek

_LN2: Final = math.log(2)

_EACH: Final = 4
"""Numbers per request in a schedule, and the multiple to which requests are rounded up (flash_attn.py:748)."""


_NARROW: Final = 64
_WIDE: Final = 128
"""Head dims between these keep the causal mask over pages."""


def slots(batch: int) -> int:
    """Return the number of requests for which a schedule of `batch` requests has room."""
    return -(-batch // _EACH) * _EACH


def really_causal(*, causal: bool, max_seqlen_q: int, window: tuple[int, int], head_dim: int, paged: bool) -> bool:
    """Return whether the kernels mask keys after a row's own.

    A window (left, right) without keys after the row's own does so as well. With a stated maximum of one row per
    request the mask is left out, for most head dims, whatever the requests' rows (hopper/flash_api.cpp, mha_fwd:
    "causal=true is the same as causal=false in this case").
    """
    if max_seqlen_q == 1 and window == (-1, -1) and (not paged or not _NARROW < head_dim <= _WIDE):
        return False
    return causal or window[1] == 0


def schedule_of(cu_seqlens_q: torch.Tensor, batch: int, num_splits: int) -> torch.Tensor:
    """Return a schedule as get_scheduler_metadata does: a semaphore, then rows and splits of each request, int32.

    `cu_seqlens_q` is int32 [batch + 1]. The other numbers of the library's schedules are 0.
    """
    room = slots(batch)
    made = torch.zeros(1 + room * _EACH, dtype=torch.int32)
    made[1 : 1 + batch] = cu_seqlens_q.diff()[:batch]
    made[1 + room : 1 + room + batch] = max(1, num_splits)
    return made


def scheduled(schedule: torch.Tensor, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows and the splits of each request, int32 [batch] each. Raises RuntimeError for another batch's."""
    room = slots(batch)
    if schedule.shape != (1 + room * _EACH,):
        # hopper/flash_api.cpp: scheduler_metadata must have shape (metadata_size)
        raise RuntimeError(f"scheduler_metadata has {tuple(schedule.shape)}, for a batch of {batch}")
    return schedule[1 : 1 + batch], schedule[1 + room : 1 + room + batch]


def attend_to_pages(
    *,
    out: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    page_table: torch.Tensor,
    max_seqlen_q: int,
    softmax_scale: float,
    causal: bool,
    window_left: int = -1,
    window_right: int = -1,
    scheduler_metadata: torch.Tensor | None = None,
    num_splits: int = 0,
    s_aux: torch.Tensor | None = None,
    max_seqlen_k: int | None = None,
) -> None:
    """Attend to paged keys and values [pages, slots, kv heads, dim]; rows that a schedule lacks are not written.

    The LSE is [heads, rows] in base e. A row without keys gets 0, and an LSE of -inf.
    """
    del max_seqlen_k
    window = (window_left, window_right)
    causal = really_causal(causal=causal, max_seqlen_q=max_seqlen_q, window=window, head_dim=q.shape[-1], paged=True)
    batch = len(cu_seqlens_q) - 1
    due, base_2 = torch.empty_like(out), torch.empty(lse.shape[::-1], dtype=torch.float32)
    trtllm_batch_context_with_kv_cache(
        query=q,
        kv_cache=(k, v),
        workspace_buffer=q,
        block_tables=page_table,
        seq_lens=seqused_k,
        max_q_len=0,
        max_kv_len=0,
        bmm1_scale=softmax_scale,
        bmm2_scale=1.0,
        batch_size=batch,
        cum_seq_lens_q=cu_seqlens_q,
        cum_seq_lens_kv=cu_seqlens_q,
        window_left=window_left,
        out=due,
        kv_layout="NHD",
        sinks=s_aux,
        causal=causal,
        lse=base_2,
    )
    rows = cu_seqlens_q.diff()
    if scheduler_metadata is not None:
        planned, splits = scheduled(scheduler_metadata, batch)
        rows = torch.minimum(rows, planned)
        most = int(splits.amax()) if batch else 1
        if most > max(1, num_splits):
            raise RuntimeError(f"the schedule has {most} splits, and there is room for {num_splits}")
    for begin, count in zip(cu_seqlens_q.tolist(), rows.tolist(), strict=False):
        out[begin : begin + count] = due[begin : begin + count]
        lse[:, begin : begin + count] = base_2[begin : begin + count].T * _LN2


def _attend_to_packed(
    *,
    out: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_left: int = -1,
    window_right: int = -1,
) -> None:
    """Attend to packed keys as FlashAttention does: LSE [heads, tokens] in base e, 0 and -inf for rows without keys.

    q is [tokens, heads, qk dim]; k, v and out are packed by token as well; offsets are int32 [requests + 1].
    """
    window = (window_left, window_right)
    # The ragged kernel leaves rows without keys unwritten.
    base_2 = torch.full((lse.shape[1], lse.shape[0]), -torch.inf, dtype=torch.float32)
    out[cu_seqlens_q[0] : cu_seqlens_q[-1]] = 0
    trtllm_ragged_attention_deepseek(
        query=q,
        key=k,
        value=v,
        workspace_buffer=q,
        seq_lens=cu_seqlens_k.diff(),
        max_q_len=max_seqlen_q,
        max_kv_len=max_seqlen_k,
        bmm1_scale=softmax_scale,
        bmm2_scale=1.0,
        o_sf_scale=1.0,
        batch_size=len(cu_seqlens_q) - 1,
        window_left=window_left,
        cum_seq_lens_q=cu_seqlens_q,
        cum_seq_lens_kv=cu_seqlens_k,
        enable_pdl=False,
        is_causal=really_causal(
            causal=causal, max_seqlen_q=max_seqlen_q, window=window, head_dim=q.shape[-1], paged=False
        ),
        return_lse=True,
        out=out,
        lse=base_2,
    )
    lse.copy_(base_2.T * _LN2)


def flash_attn_varlen_func(**arguments: Any) -> None:
    """Stand in for FlashAttention's function of that name: it attends to pages if it gets a page table."""
    if arguments.get("page_table") is None:
        _attend_to_packed(**arguments)
    else:
        attend_to_pages(**arguments)


VARLEN: Final = Op("flash_attn_varlen_func", flash_attn_varlen_func, frozenset({"out", "lse"}))


def latents_of(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return whole rows of a cache from their last part and their first one [..., dim]."""
    rank, rope = v.shape[-1], k.shape[-1]
    # An axis of one index may have any stride.
    strides = {(a, b) for a, b, size in zip(k.stride(), v.stride(), k.shape, strict=True) if size > 1}
    if k.data_ptr() != v.data_ptr() + rank * v.itemsize or any(a != b for a, b in strides):
        raise NotImplementedError("the parts of latents must be those of one cache, values first")
    return v.as_strided((*v.shape[:-1], rank + rope), v.stride())


def flash_attn_with_kvcache(
    *,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: torch.Tensor,
    q: torch.Tensor,
    qv: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    **others: Any,
) -> None:
    """Stand in for FlashAttention's function of that name, on a cache [pages, slots, kv heads, dim] or latents.

    With qv [rows, heads, rank], v_cache are the first parts of latents and k_cache the last: logits are qv * v_cache +
    q * k_cache, with q [rows, heads, rope].
    """
    if qv is not None:
        q, k_cache = torch.cat((qv, q), dim=-1), latents_of(k_cache, v_cache)
    attend_to_pages(q=q, k=k_cache, v=v_cache, seqused_k=cache_seqlens, s_aux=sinks, **others)


WITH_CACHE: Final = Op("flash_attn_with_kvcache", flash_attn_with_kvcache, frozenset({"out", "lse"}))


def check_window(*, causal: bool, window: tuple[int, int]) -> None:
    """Raise NotImplementedError for windows that the ops don't have."""
    if window[0] >= 0 and not (causal or window[1] == 0):
        raise NotImplementedError("no stand-in of FlashAttention has windows with keys after a row's own")


OPS: Final = (VARLEN, WITH_CACHE)
