"""FlashAttention 3 below SGLang: the functions of its library sgl_kernel, on native ops.

Parameters are those of sglang-kernel 0.4.10 (python/sgl_kernel/flash_attn.py), in an order that earlier calls by
position fit; checks are those of the compiled library (hopper/flash_api.cpp, mha_fwd).
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.releases.flash_attention import OPS as SHARED
from attnfuzz.kernels.releases.flash_attention import VARLEN, WITH_CACHE, check_window, schedule_of
from attnfuzz.kernels.releases.planned_runs import merge_states
from attnfuzz.kernels.releases.stand_ins import current

_LN2: Final = math.log(2)

Results = torch.Tensor | tuple[torch.Tensor, torch.Tensor, None, None]


def _parameters(text: str) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind, default=None) for name in text.split()])


_PAGED: Final = _parameters(
    "q k_cache v_cache k v qv rotary_cos rotary_sin cache_seqlens cache_batch_idx cache_leftpad page_table cu_seqlens_q"
    " cu_seqlens_k_new max_seqlen_q rotary_seqlens q_descale k_descale v_descale softmax_scale causal window_size"
    " attention_chunk softcap rotary_interleaved scheduler_metadata num_splits pack_gqa sm_margin return_softmax_lse"
    " sinks score_mod aux_tensors ver out only_qv"
)

_OF_PACKED: Final = _parameters(
    "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k seqused_q seqused_k page_table softmax_scale causal qv"
    " q_descale k_descale v_descale window_size attention_chunk softcap num_splits pack_gqa sm_margin"
    " return_softmax_lse sinks score_mod aux_tensors ver out only_qv"
)

_TAKEN: Final = {
    *("q", "k_cache", "v_cache", "qv", "cache_seqlens", "page_table", "cu_seqlens_q", "max_seqlen_q", "softmax_scale"),
    *("causal", "window_size", "scheduler_metadata", "num_splits", "return_softmax_lse", "sinks", "out"),
    # Without new keys, these have no effect.
    *("cu_seqlens_k_new", "rotary_interleaved", "pack_gqa", "sm_margin", "ver"),
}

_TAKEN_PACKED: Final = _TAKEN | {"k", "v", "cu_seqlens_k", "max_seqlen_k"}


def _bound(signature: inspect.Signature, taken: set[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the arguments by name. Raises TypeError for one that the library lacks, NotImplementedError for ours."""
    given = signature.bind(*args, **kwargs)
    for name, value in given.arguments.items():
        if name not in taken and value is not None and value:
            raise NotImplementedError(f"no stand-in of FlashAttention takes {name}")
    given.apply_defaults()
    return given.arguments


def _mask(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mask of a call, as the ops take it."""
    window = given["window_size"] or (-1, -1)
    check_window(causal=bool(given["causal"]), window=window)
    # The others are the defaults of the ops.
    sides = {name: side for name, side in zip(("window_left", "window_right"), window, strict=True) if side != -1}
    return {"causal": bool(given["causal"]), **sides}


def _results(given: Mapping[str, Any], dim: int) -> dict[str, torch.Tensor]:
    """Return the tensors that a call writes."""
    query, out = given["q"], given["out"]
    if out is None:
        out = torch.empty(*query.shape[:-1], dim, dtype=query.dtype)
    return {"out": out, "lse": torch.empty(query.shape[1], query.shape[0], dtype=torch.float32)}


def _check(given: Mapping[str, Any]) -> None:
    """Raise RuntimeError as mha_fwd does: for other dtypes, and for metadata of different numbers of requests."""
    batch = len(given["cu_seqlens_q"]) - 1
    for name in ("cu_seqlens_q", "cache_seqlens", "page_table"):
        if given[name].dtype != torch.int32:
            raise RuntimeError(f"{name} must have dtype int32, not {given[name].dtype}")
    if given["page_table"].shape[0] != batch:
        raise RuntimeError(f"batch_size must be equal to batch_size_k: {batch} and {given['page_table'].shape[0]}")
    if given["cache_seqlens"].shape != (batch,):
        raise RuntimeError(f"seqused_k must have shape (batch_size): {tuple(given['cache_seqlens'].shape)}, {batch}")
    if given["k_cache"].dtype != given["q"].dtype:
        raise RuntimeError("query and key must have the same dtype")


def flash_attn_with_kvcache(*args: Any, **kwargs: Any) -> Results:
    """Stand in for attention to a paged cache in the queries' dtype, without new keys."""
    given = _bound(_PAGED, _TAKEN, args, kwargs)
    _check(given)
    made = _results(given, given["v_cache"].shape[-1])
    latent = given["qv"] is not None
    names = (
        # In the order of the parts of latents.
        *(("qv", "q", "v_cache", "k_cache") if latent else ("q", "k_cache", "v_cache")),
        *("page_table", "cache_seqlens", "cu_seqlens_q", "max_seqlen_q", "softmax_scale"),
    )
    optional = {name: given[name] for name in ("sinks", "scheduler_metadata") if given[name] is not None}
    splits = {"num_splits": given["num_splits"]} if given["num_splits"] else {}
    arguments = {**made, **{name: given[name] for name in names}, **optional, **splits, **_mask(given)}
    current(WITH_CACHE.name).launch(WITH_CACHE, arguments)
    return (made["out"], made["lse"], None, None) if given["return_softmax_lse"] else made["out"]


def flash_attn_varlen_func(*args: Any, **kwargs: Any) -> Results:
    """Stand in for attention to packed keys and values [tokens, heads, dim]."""
    given = _bound(_OF_PACKED, _TAKEN_PACKED, args, kwargs)
    if given["sinks"] is not None:
        raise NotImplementedError("no stand-in of FlashAttention on packed keys has sinks")
    made = _results(given, given["v"].shape[-1])
    names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "softmax_scale")
    arguments = {**made, **{name: given[name] for name in names}, **_mask(given)}
    current(VARLEN.name).launch(VARLEN, arguments)
    return (made["out"], made["lse"], None, None) if given["return_softmax_lse"] else made["out"]


def get_scheduler_metadata(
    batch_size: int, *, cu_seqlens_q: torch.Tensor, num_splits: int, **_others: Any
) -> torch.Tensor:
    """Stand in for the function that schedules a batch for all layers."""
    return schedule_of(cu_seqlens_q, batch_size, num_splits)


def merge_in_base_e(
    *,
    v: torch.Tensor,
    s: torch.Tensor,
    v_a: torch.Tensor,
    s_a: torch.Tensor,
    v_b: torch.Tensor,
    s_b: torch.Tensor,
) -> None:
    """Merge two states into v [tokens, heads, dim] and s [tokens, heads], whose logarithms are in base e."""
    merge_states(v=v, s=s, v_a=v_a, s_a=s_a / _LN2, v_b=v_b, s_b=s_b / _LN2)
    s.mul_(_LN2)


MERGE: Final = Op("merge_state_v2", merge_in_base_e, frozenset({"v", "s"}))


def merge_state_v2(
    v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand in for the function that merges attention to prefixes with attention to drafts."""
    v, s = torch.empty_like(v_a), torch.empty_like(s_a)
    current(MERGE.name).launch(MERGE, {"v": v, "s": s, "v_a": v_a, "s_a": s_a, "v_b": v_b, "s_b": s_b})
    return v, s


LIBRARY: Final[Mapping[str, Mapping[str, Callable[..., Any]]]] = {
    "sgl_kernel": {"merge_state_v2": merge_state_v2},
    "sgl_kernel.flash_attn": {
        each.__name__: each for each in (flash_attn_with_kvcache, flash_attn_varlen_func, get_scheduler_metadata)
    },
}
"""The modules of the library that the backend imports, with their functions."""

OPS: Final = (*SHARED, MERGE)
"""The ops below these functions."""
