"""FlashAttention 3 below a release: native ops that trust the same arguments as its kernels, and schedules of batches.

A release's calls are bound to the signature of its own library (`kernels.vllm.flash_attention`,
`kernels.sglang.flash_attention`) and launched as these ops.
"""

import math
from typing import Final

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


def attend(
    *,
    out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    seqused_k: torch.Tensor,
    page_table: torch.Tensor,
    scheduler_metadata: torch.Tensor | None,
    num_splits: int,
    softmax_scale: float,
    causal: bool,
    window_left: int,
    s_aux: torch.Tensor | None,
    lse: torch.Tensor,
) -> None:
    """Attend to paged keys and values [pages, slots, kv heads, dim]; rows that a schedule lacks are not written.

    The LSE is [heads, rows] in base e. A row without keys gets 0, and an LSE of -inf.
    """
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
        room = slots(batch)
        if scheduler_metadata.shape != (1 + room * _EACH,):
            # hopper/flash_api.cpp: scheduler_metadata must have shape (metadata_size)
            raise RuntimeError(f"scheduler_metadata has {tuple(scheduler_metadata.shape)}, for a batch of {batch}")
        rows = torch.minimum(rows, scheduler_metadata[1 : 1 + batch])
        most = int(scheduler_metadata[1 + room : 1 + room + batch].amax()) if batch else 1
        if most > max(1, num_splits):
            raise RuntimeError(f"the schedule has {most} splits, and there is room for {num_splits}")
    for begin, count in zip(cu_seqlens_q.tolist(), rows.tolist(), strict=False):
        out[begin : begin + count] = due[begin : begin + count]
        lse[:, begin : begin + count] = base_2[begin : begin + count].T * _LN2


FORWARD: Final = Op("flash_attn_varlen_func", attend, frozenset({"out", "lse"}), own=True)


def _attend_to_packed(
    *,
    out: torch.Tensor,
    lse: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    cum_seq_lens_kv: torch.Tensor,
    max_q_len: int,
    max_kv_len: int,
    scale: float,
    causal: bool,
    window_left: int = -1,
) -> None:
    """Attend to packed keys as FlashAttention does: LSE [heads, tokens] in base e, 0 and -inf for rows without keys.

    query is [tokens, heads, qk dim]; key, value and out are packed by token as well; offsets are int32 [requests + 1].
    """
    # The ragged kernel leaves rows without keys unwritten.
    base_2 = torch.full((lse.shape[1], lse.shape[0]), -torch.inf, dtype=torch.float32)
    out[cum_seq_lens_q[0] : cum_seq_lens_q[-1]] = 0
    trtllm_ragged_attention_deepseek(
        query=query,
        key=key,
        value=value,
        workspace_buffer=query,
        seq_lens=cum_seq_lens_kv.diff(),
        max_q_len=max_q_len,
        max_kv_len=max_kv_len,
        bmm1_scale=scale,
        bmm2_scale=1.0,
        o_sf_scale=1.0,
        batch_size=len(cum_seq_lens_q) - 1,
        window_left=window_left,
        cum_seq_lens_q=cum_seq_lens_q,
        cum_seq_lens_kv=cum_seq_lens_kv,
        enable_pdl=False,
        is_causal=causal,
        return_lse=True,
        out=out,
        lse=base_2,
    )
    lse.copy_(base_2.T * _LN2)


PACKED: Final = Op("flash_attn_varlen_func", _attend_to_packed, frozenset({"out", "lse"}), own=True)
