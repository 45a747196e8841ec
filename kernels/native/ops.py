"""The native kernels as functions with FlashInfer's names and arguments.

Arguments that no native kernel implements are accepted at FlashInfer's default, and rejected by name otherwise.
Metadata is int32. Query and outputs are float32, bfloat16 or float16; K and V have the query's dtype or float8_e4m3fn.
All are contiguous in their last axis, with arbitrary other strides. Scales are any numbers, and batches may be empty.
Tensors are on the CPU, or on a GPU for the library with which `kernels.gpu.any_gpu` replaces this one. LSE is base 2,
float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.interface.ops_table import OpsTable, WorkspaceBytes
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.unsupported import host_scale, reject_others


def workspace_bytes(
    *, batch: int, q_len: int, q_heads: int, kv_heads: int, head_dim_vo: int, max_seq_len: int
) -> WorkspaceBytes:
    """Return the workspace of one decode call, from the batch of its query rows and the stated maximum length.

    For MLA, `kv_heads` is 1 and `head_dim_vo` the rank. The semaphores have the same size for every call, so a
    workspace for several calls needs the largest of their scratch.
    """
    module = build.load()
    scratch = module.scratch_bytes(batch, q_len, q_heads, kv_heads, head_dim_vo, max_seq_len)
    return WorkspaceBytes(module.semaphore_bytes(), scratch)


Pair = tuple[torch.Tensor, torch.Tensor]
Answer = torch.Tensor | Pair

_LAYOUTS: Final = ("HND", "NHD")


def trtllm_batch_decode_with_kv_cache(
    query: torch.Tensor,
    kv_cache: torch.Tensor | Pair,
    workspace_buffer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    bmm1_scale: float = 1.0,
    bmm2_scale: float = 1.0,
    window_left: int = -1,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    sinks: torch.Tensor | Sequence[torch.Tensor] | None = None,
    kv_layout: str = "HND",
    kv_cache_sf: Pair | None = None,
    v_scales_swizzled: bool = False,
    q_len_per_req: int | None = 1,
    lse: torch.Tensor | None = None,
    return_lse: bool = False,
    **others: Any,
) -> Answer:
    """Attend causally with `q_len_per_req` queries per request, with split KV.

    query [batch * q_len_per_req, q heads, head dim]; kv_cache [pages, 2, ...] or a pair, where pages are [heads, slots,
    dim] (HND) or [slots, heads, dim] (NHD); block_tables [batch, pages per request]; seq_lens [batch]. The batch is
    derived from the rows of `query`, and never compared with those of the metadata. `kv_cache_sf`: the scales of K and
    V, float32, [heads] or [pages, heads, slots] (HND) or [pages, slots, heads] (NHD), as in FlashInfer's PR 5272. With
    an NVFP4 cache of uint8, they are scales of blocks, float8_e4m3fn, with a last axis of head dim / 16;
    `v_scales_swizzled` says that those of V are swizzled, which FlashInfer's trtllm-gen kernels require and XQA does
    not.
    """
    reject_others("trtllm_batch_decode_with_kv_cache", others)
    if q_len_per_req is None:
        raise NotImplementedError("native decode: queries of different lengths (q_len_per_req=None) are unsupported")
    key, value, paired = split(kv_cache)
    out = _output(query, value.shape[-1], out, out_dtype)
    if lse is None and return_lse:
        lse = _empty_lse(query)
    build.load().decode(
        out,
        lse,
        query,
        key,
        value,
        paired,
        is_nhd(kv_layout),
        *(kv_cache_sf or (None, None)),
        v_scales_swizzled,
        workspace_buffer,
        block_tables,
        seq_lens,
        q_len_per_req,
        max_seq_len,
        host_scale("bmm1_scale", bmm1_scale),
        host_scale("bmm2_scale", bmm2_scale),
        window_left,
        _one_sink(sinks),
    )
    return _answer(out, lse, return_lse)


def trtllm_batch_context_with_kv_cache(
    query: torch.Tensor,
    kv_cache: torch.Tensor | Pair,
    workspace_buffer: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    max_q_len: int,
    max_kv_len: int,
    bmm1_scale: float,
    bmm2_scale: float,
    batch_size: int,
    cum_seq_lens_q: torch.Tensor,
    cum_seq_lens_kv: torch.Tensor,
    window_left: int = -1,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    *,
    kv_layout: str = "HND",
    kv_cache_sf: Pair | None = None,
    v_scales_swizzled: bool = False,
    sinks: torch.Tensor | Sequence[torch.Tensor] | None = None,
    causal: bool = True,
    packed_custom_mask: torch.Tensor | None = None,
    mask_indptr: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    return_lse: bool = False,
    window_right: int = -1,
    variable_window_token_starts: torch.Tensor | None = None,
    variable_window_token_ends: torch.Tensor | None = None,
    **others: Any,
) -> Answer:
    """Attend to a paged cache, for requests with individual q lengths; tensors as for decode.

    Request b has the rows from cum_seq_lens_q[b] up to cum_seq_lens_q[b + 1]; rows of no request stay unwritten.
    `batch_size` is trusted. `workspace_buffer`, the maxima and `cum_seq_lens_kv` are not used. With masks, packed like
    those of FlashInfer's prefill wrappers, a query sees the keys that are set and in the window (DefaultAttention's
    LogitsMask, attention/variants.cuh), whether `causal` or not: `packed_custom_mask` is uint8, in which the bits of
    request b begin with byte mask_indptr[b] of int32 [batch + 1].

    Unless `causal`, a window ends `window_right` keys after a query's own. `variable_window_token_starts` and `_ends`,
    int32 [tokens], are the first and the last key that each query sees, which nothing else limits; they are trusted.
    Raises ValueError for windows that FlashInfer 0.7.4 refuses.
    """
    del workspace_buffer, max_q_len, max_kv_len, cum_seq_lens_kv
    reject_others("trtllm_batch_context_with_kv_cache", others)
    variable = variable_window_token_starts, variable_window_token_ends
    _check_windows(window_left, window_right, variable, causal=causal or packed_custom_mask is not None)
    key, value, paired = split(kv_cache)
    out = _output(query, value.shape[-1], out, out_dtype)
    if lse is None and return_lse:
        lse = _empty_lse(query)
    build.load().context(
        out,
        lse,
        query,
        key,
        value,
        paired,
        is_nhd(kv_layout),
        *(kv_cache_sf or (None, None)),
        v_scales_swizzled,
        block_tables,
        seq_lens,
        cum_seq_lens_q,
        batch_size,
        host_scale("bmm1_scale", bmm1_scale),
        host_scale("bmm2_scale", bmm2_scale),
        window_left,
        window_right,
        causal,
        _one_sink(sinks),
        packed_custom_mask,
        mask_indptr,
        *variable,
    )
    return _answer(out, lse, return_lse)


def trtllm_ragged_attention_deepseek(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    workspace_buffer: torch.Tensor,
    seq_lens: torch.Tensor,
    max_q_len: int,
    max_kv_len: int,
    bmm1_scale: float,
    bmm2_scale: float,
    o_sf_scale: float,
    batch_size: int,
    window_left: int,
    cum_seq_lens_q: torch.Tensor,
    cum_seq_lens_kv: torch.Tensor,
    enable_pdl: bool | None,
    is_causal: bool,
    return_lse: bool,
    attention_sinks: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    q_seq_lens_cpu: torch.Tensor | None = None,
    kv_seq_lens_cpu: torch.Tensor | None = None,
    **others: Any,
) -> Answer:
    """Attend to packed keys: query [tokens, heads, qk dim], key and value [kv tokens, heads, qk or vo dim].

    Request b attends to seq_lens[b] keys from row cum_seq_lens_kv[b] on. Without keys, its rows of `out` and `lse` stay
    unwritten, unless both CPU mirrors are given: then they are 0 and -inf. `batch_size` is trusted.
    """
    del workspace_buffer, max_q_len, max_kv_len, enable_pdl
    reject_others("trtllm_ragged_attention_deepseek", others)
    if o_sf_scale not in (None, -1.0, 1.0):
        raise NotImplementedError(f"native ragged: o_sf_scale={o_sf_scale!r} is unsupported (no scaled outputs)")
    if (q_seq_lens_cpu is None) is not (kv_seq_lens_cpu is None):
        raise ValueError("q_seq_lens_cpu and kv_seq_lens_cpu must be given together")
    out = _output(query, value.shape[-1], out)
    if lse is None and return_lse:
        lse = _empty_lse(query)
    build.load().ragged(
        out,
        lse,
        query,
        key,
        value,
        seq_lens,
        cum_seq_lens_q,
        cum_seq_lens_kv,
        batch_size,
        q_seq_lens_cpu is not None,
        host_scale("bmm1_scale", bmm1_scale),
        host_scale("bmm2_scale", bmm2_scale),
        window_left,
        is_causal,
        attention_sinks,
    )
    return _answer(out, lse, return_lse)


def trtllm_batch_decode_with_kv_cache_mla(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    workspace_buffer: torch.Tensor,
    qk_nope_head_dim: int,
    kv_lora_rank: int,
    qk_rope_head_dim: int,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    *,
    out: torch.Tensor | None = None,
    bmm1_scale: float = 1.0,
    bmm2_scale: float = 1.0,
    sinks: torch.Tensor | Sequence[torch.Tensor] | None = None,
    lse: torch.Tensor | None = None,
    return_lse: bool = False,
    **others: Any,
) -> Answer:
    """Attend causally to latents, with split KV: K is the whole latent, V its first `kv_lora_rank` elements.

    query [batch, q_len, heads, rank + rope]; kv_cache [pages, slots, rank + rope] or [pages, 1, slots, rank + rope];
    out [batch, q_len, heads, rank]; lse [batch * q_len, heads] or [batch, q_len, heads]. The rows of `block_tables` are
    compared with the batch, as in FlashInfer; those of `seq_lens` are not.
    """
    del qk_nope_head_dim
    reject_others("trtllm_batch_decode_with_kv_cache_mla", others)
    if query.shape[-1] != kv_lora_rank + qk_rope_head_dim:
        raise ValueError(
            f"query has head dim {query.shape[-1]}, but kv_lora_rank + qk_rope_head_dim is "
            f"{kv_lora_rank + qk_rope_head_dim}"
        )
    out = _output(query, kv_lora_rank, out)
    if lse is None and return_lse:
        lse = query.new_empty(query.shape[0] * query.shape[1], query.shape[2], dtype=torch.float32)
    build.load().mla_decode(
        out,
        lse.flatten(0, 1) if lse is not None and lse.ndim == query.ndim - 1 else lse,
        query,
        kv_cache,
        workspace_buffer,
        block_tables,
        seq_lens,
        kv_lora_rank,
        max_seq_len,
        host_scale("bmm1_scale", bmm1_scale),
        host_scale("bmm2_scale", bmm2_scale),
        _one_sink(sinks),
    )
    return _answer(out, lse, return_lse)


def merge_state_in_place(
    v: torch.Tensor,
    s: torch.Tensor,
    v_other: torch.Tensor,
    s_other: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> None:
    """Merge the attention state (v_other, s_other) into (v, s): v [tokens, heads, dim], s [tokens, heads] in base 2.

    Rows whose `mask` (bool or uint8 [tokens]) is 0 are unchanged. -inf on both sides gives 0 and -inf.
    """
    build.load().merge_state_in_place(v, s, v_other, s_other, mask)


def fixup_zero_kv_rows(
    out: torch.Tensor, lse: torch.Tensor, kv_lens: torch.Tensor, cum_seq_lens: torch.Tensor, max_seq_len: int
) -> None:
    """Write out = 0 and lse = -inf for every token of a request without keys, like `planning.fixup`."""
    build.load().fixup_zero_kv_rows(out, lse, kv_lens, cum_seq_lens, max_seq_len)


def split(kv_cache: torch.Tensor | Pair) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """Return K, V, and whether both are the whole cache [pages, 1 or 2, ...], which the kernel splits."""
    if isinstance(kv_cache, torch.Tensor):
        return kv_cache, kv_cache, True
    key, value = kv_cache
    return key, value, False


def is_nhd(kv_layout: str) -> bool:
    """Return whether `kv_layout` is "NHD". Raises ValueError for a layout that does not exist."""
    if kv_layout not in _LAYOUTS:
        raise ValueError(f"kv_layout must be HND or NHD, not {kv_layout!r}")
    return kv_layout == "NHD"


def _check_windows(left: int, right: int, variable: Sequence[torch.Tensor | None], *, causal: bool) -> None:
    """Raise ValueError for windows that exclude each other (FlashInfer 0.7.4, prefill.py:8784-8842)."""
    given = [each is not None for each in variable]
    if any(given) and (not all(given) or left != -1 or right != -1):
        raise ValueError("variable windows have starts and ends, and neither window_left nor window_right")
    if causal and right not in (-1, 0):
        raise ValueError("causal attention requires window_right to be -1 or 0")
    if not causal and not any(given) and (left >= 0) is not (right >= 0):
        raise ValueError("a window that is not causal requires both window_left and window_right")


def _one_sink(sinks: torch.Tensor | Sequence[torch.Tensor] | None) -> torch.Tensor | None:
    """Return the sinks as a tensor: FlashInfer annotates a list, but is called with a tensor."""
    if sinks is None or isinstance(sinks, torch.Tensor):
        return sinks
    (sink,) = sinks
    return sink


def _output(
    query: torch.Tensor, dim: int, out: torch.Tensor | None, out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return `out`, or a new tensor like `query` with head dim `dim`."""
    if out is not None and not isinstance(out, torch.Tensor):
        raise NotImplementedError(f"native kernels: out={type(out).__name__} is unsupported, pass a tensor")
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise NotImplementedError(f"native kernels: out_dtype={out_dtype!r} is unsupported, pass a torch.dtype")
    if out is None:
        return query.new_empty((*query.shape[:-1], dim), dtype=out_dtype or query.dtype)
    if out_dtype is not None and out_dtype != out.dtype:
        raise ValueError(f"out_dtype is {out_dtype}, but out has dtype {out.dtype}")
    return out


def _empty_lse(query: torch.Tensor) -> torch.Tensor:
    return query.new_empty(query.shape[:2], dtype=torch.float32)


def _answer(out: torch.Tensor, lse: torch.Tensor | None, return_lse: bool) -> Answer:
    if not return_lse:
        return out
    assert lse is not None
    return out, lse


_RESULTS: Final = frozenset({"out", "lse", "workspace_buffer"})


def _op(function: Callable[..., Any], module: str | None, *writes: str) -> Op:
    return Op(function.__name__, function, frozenset(writes) or _RESULTS, module)


NATIVE: Final = OpsTable(
    decode=_op(trtllm_batch_decode_with_kv_cache, "flashinfer.decode"),
    context=_op(trtllm_batch_context_with_kv_cache, "flashinfer.prefill"),
    ragged=_op(trtllm_ragged_attention_deepseek, "flashinfer.prefill"),
    mla_decode=_op(trtllm_batch_decode_with_kv_cache_mla, "flashinfer.mla"),
    merge_state_in_place=_op(merge_state_in_place, "flashinfer.cascade", "v", "s"),
    fixup=replace(_op(fixup_zero_kv_rows, None, "out", "lse"), helps=True),
    decode_workspace=workspace_bytes,
    prefill_workspace=WorkspaceBytes(0, 0),
    prepare=build.load,
    # FlashInfer's function of this name has no masks.
    masked_context=Op("trtllm_batch_context_with_custom_mask", trtllm_batch_context_with_kv_cache, _RESULTS),
)
"""The native kernels."""
