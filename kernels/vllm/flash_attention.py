"""FlashAttention 3 below vLLM's own interface: a native kernel, and the function that schedules a batch for it.

Only the functions of the compiled library are replaced (0.33.0: vllm_flash_attn/flash_attn_interface.py).
"""

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch

from attnfuzz.kernels.releases.flash_attention import VARLEN, check_window, schedule_of
from attnfuzz.kernels.releases.stand_ins import current


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


def schedule(*args: Any) -> torch.Tensor:
    """Stand in for get_scheduler_metadata."""
    given = _SCHEDULE.bind(*args).arguments
    return schedule_of(given["cu_seqlens_q"], given["batch_size"], given["num_splits"])


def forward(*args: Any) -> tuple[Any, ...]:
    """Stand in for torch.ops._vllm_fa3_C.fwd on a paged cache in the queries' dtype, or on packed keys."""
    given = _FORWARD.bind(*args).arguments
    for name, value in given.items():
        if name not in _TAKEN and value is not None:
            raise NotImplementedError(f"no stand-in of FlashAttention takes {name}")
    if given["softcap"] or given["cp_world_size"] != 1 or given["k"].dtype != given["q"].dtype:
        raise NotImplementedError("no stand-in of FlashAttention has soft caps, context parallelism or FP8")
    check_window(causal=given["causal"], window=(given["window_left"], given["window_right"]))
    query, out = given["q"], given["out"]
    lse = torch.empty(query.shape[1], query.shape[0], dtype=torch.float32)
    names = ["out", "q", "k", "v", "cu_seqlens_q", "max_seqlen_q", "max_seqlen_k", "softmax_scale", "causal"]
    if given["page_table"] is None:
        if given["s_aux"] is not None:
            raise NotImplementedError("no stand-in of FlashAttention on packed keys has sinks")
        names.append("cu_seqlens_k")
    else:
        names += ["seqused_k", "page_table"]
        names += [name for name in ("scheduler_metadata", "s_aux") if given[name] is not None]
        names += ["num_splits"] if given["num_splits"] else []
    names += [name for name in ("window_left", "window_right") if given[name] != -1]
    current(VARLEN.name).launch(VARLEN, {"lse": lse, **{name: given[name] for name in names}})
    return out, lse, None, None


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {"fwd": forward, "get_scheduler_metadata": schedule}
"""The stand-ins, by the names of the library's functions."""
