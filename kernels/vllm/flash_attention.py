"""FlashAttention 3 below vLLM's own interface: a native kernel, and the function that schedules a batch for it.

Only the functions of the compiled library are replaced (0.33.0: vllm_flash_attn/flash_attn_interface.py).
"""

import inspect
import math
from collections.abc import Callable
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.ops import trtllm_batch_context_with_kv_cache, trtllm_ragged_attention_deepseek
from attnfuzz.kernels.releases.stand_ins import current

_LN2: Final = math.log(2)

_EACH: Final = 4
"""Numbers per request in a schedule, and the multiple to which requests are rounded up (flash_attn.py:748)."""


def _parameters(text: str) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_ONLY
    return inspect.Signature([inspect.Parameter(name, kind) for name in text.split()])


_FORWARD: Final = _parameters(
    "q k v k_new v_new q_v out cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q seqused_k max_seqlen_q max_seqlen_k"
    " page_table kv_batch_idx leftpad_k rotary_cos rotary_sin seqlens_rotary q_descale k_descale v_descale"
    " softmax_scale causal window_left window_right softcap rotary_interleaved scheduler_metadata num_splits pack_gqa"
    " sm_margin s_aux cp_world_size cp_rank cp_tot_seqused_k"
)
"""The arguments of torch.ops._vllm_fa3_C.fwd, in all releases from 0.18.0 to 0.33.0."""

_SCHEDULE: Final = _parameters(
    "batch_size max_seqlen_q max_seqlen_k num_heads_q num_heads_kv headdim headdim_v qkv_dtype cache_seqlens"
    " cu_seqlens_q cu_seqlens_k cu_seqlens_k_new seqused_q cache_leftpad page_size max_seqlen_k_new causal"
    " window_left window_right has_softcap num_splits pack_gqa sm_margin"
)
"""The arguments of get_scheduler_metadata."""

_TAKEN: Final = {
    *("q", "k", "v", "out", "cu_seqlens_q", "cu_seqlens_k", "seqused_k", "max_seqlen_q", "max_seqlen_k", "page_table"),
    *("q_descale", "k_descale", "v_descale", "softmax_scale", "causal", "window_left", "window_right", "softcap"),
    *("rotary_interleaved", "scheduler_metadata", "num_splits", "sm_margin", "s_aux", "cp_world_size", "cp_rank"),
}
"""The arguments of `fwd` that the stand-in uses, or that are the same in every call of vLLM."""


_OF_PACKED: Final = {
    "out": "out",
    "query": "q",
    "key": "k",
    "value": "v",
    "cum_seq_lens_q": "cu_seqlens_q",
    "cum_seq_lens_kv": "cu_seqlens_k",
    "max_q_len": "max_seqlen_q",
    "max_kv_len": "max_seqlen_k",
    "scale": "softmax_scale",
    "causal": "causal",
    "window_left": "window_left",
}
"""The arguments of `PACKED` among those of `fwd`."""


def _slots(batch: int) -> int:
    return -(-batch // _EACH) * _EACH


def schedule(*args: Any) -> torch.Tensor:
    """Stand in for get_scheduler_metadata: a semaphore, then rows and splits of each request, int32."""
    given = _SCHEDULE.bind(*args).arguments
    batch, starts = given["batch_size"], given["cu_seqlens_q"]
    slots = _slots(batch)
    made = torch.zeros(1 + slots * _EACH, dtype=torch.int32)
    made[1 : 1 + batch] = starts.diff()[:batch]
    made[1 + slots : 1 + slots + batch] = max(1, given["num_splits"])
    return made


def _attend(
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
        slots = _slots(batch)
        if scheduler_metadata.shape != (1 + slots * _EACH,):
            # hopper/flash_api.cpp: scheduler_metadata must have shape (metadata_size)
            raise RuntimeError(f"scheduler_metadata has {tuple(scheduler_metadata.shape)}, for a batch of {batch}")
        rows = torch.minimum(rows, scheduler_metadata[1 : 1 + batch])
        most = int(scheduler_metadata[1 + slots : 1 + slots + batch].amax()) if batch else 1
        if most > max(1, num_splits):
            raise RuntimeError(f"the schedule has {most} splits, and there is room for {num_splits}")
    for begin, count in zip(cu_seqlens_q.tolist(), rows.tolist(), strict=False):
        out[begin : begin + count] = due[begin : begin + count]
        lse[:, begin : begin + count] = base_2[begin : begin + count].T * _LN2


FORWARD: Final = Op("flash_attn_varlen_func", _attend, frozenset({"out", "lse"}), own=True)


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


def forward(*args: Any) -> tuple[Any, ...]:
    """Stand in for torch.ops._vllm_fa3_C.fwd on a paged cache in the queries' dtype, or on packed keys."""
    given = _FORWARD.bind(*args).arguments
    for name, value in given.items():
        if name not in _TAKEN and value is not None:
            raise NotImplementedError(f"no stand-in of FlashAttention takes {name}")
    if given["softcap"] or given["cp_world_size"] != 1 or given["k"].dtype != given["q"].dtype:
        raise NotImplementedError("no stand-in of FlashAttention has soft caps, context parallelism or FP8")
    # A window without keys after a row's own makes it causal (hopper/flash_api.cpp, mha_fwd).
    given["causal"] = given["causal"] or given["window_right"] == 0
    if given["window_left"] >= 0 and not given["causal"]:
        raise NotImplementedError("no stand-in of FlashAttention has windows with keys after a row's own")
    query, out = given["q"], given["out"]
    lse = torch.empty(query.shape[1], query.shape[0], dtype=torch.float32)
    if given["page_table"] is None:
        if given["s_aux"] is not None:
            raise NotImplementedError("no stand-in of FlashAttention on packed keys has sinks")
        arguments = {ours: given[name] for ours, name in _OF_PACKED.items()}
        current(PACKED.name).launch(PACKED, {"lse": lse, **arguments})
    else:
        names = (
            *("out", "q", "k", "v", "cu_seqlens_q", "seqused_k", "page_table", "scheduler_metadata", "num_splits"),
            *("softmax_scale", "causal", "window_left", "s_aux"),
        )
        current(FORWARD.name).launch(FORWARD, {"lse": lse, **{name: given[name] for name in names}})
    return out, lse, None, None


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {"fwd": forward, "get_scheduler_metadata": schedule}
"""The stand-ins, by the names of the library's functions."""
