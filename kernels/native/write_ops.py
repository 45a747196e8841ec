"""The native kernels that write into a KV cache, as functions with the libraries' names and arguments.

Tokens and caches are float32, bfloat16, float16 or float8_e4m3fn, contiguous in their last axis, with arbitrary other
strides, and on the CPU. Indices are trusted as the libraries' kernels trust them (TRAPS.md).
"""

from collections.abc import Iterator
from typing import Final

import torch

from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import Pair, is_nhd, split

_FP8: Final = ("fp8", "fp8_e4m3")


def append_paged_kv_cache(
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    paged_kv_cache: torch.Tensor | Pair,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    kv_layout: str = "NHD",
) -> None:
    """Write each token to its position of its request, like FlashInfer's function of this name.

    append_key and append_value [tokens, heads, dim]; batch_indices and positions [tokens]; paged_kv_cache
    [pages, 2, ...] or a pair; kv_indices: the pages of all requests, those of request b from kv_indptr[b] on. Neither
    batch_indices nor positions are checked, and kv_last_page_len is not read.
    """
    key, value, paired = split(paged_kv_cache)
    build.load().append_paged_kv_cache(
        append_key,
        append_value,
        batch_indices,
        positions,
        key,
        value,
        paired,
        kv_indices,
        kv_indptr,
        kv_last_page_len,
        is_nhd(kv_layout),
    )


def nvfp4_quantize_append_paged_kv_cache(
    append_key: torch.Tensor,
    append_value: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    paged_kv_cache: torch.Tensor | Pair,
    kv_cache_sf: Pair,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str = "NHD",
) -> None:
    """Quantise tokens to NVFP4, and write each to its position of its request, like FlashInfer's function of this name.

    paged_kv_cache uint8 with a last axis of dim / 2, kv_cache_sf float8_e4m3fn with one of dim / 16, linear. A block's
    scale is its largest magnitude over 6 and over k_scale or v_scale; the rest as for append_paged_kv_cache.
    """
    key, value, paired = split(paged_kv_cache)
    build.load().nvfp4_quantize_append_paged_kv_cache(
        append_key,
        append_value,
        batch_indices,
        positions,
        key,
        value,
        paired,
        *kv_cache_sf,
        kv_indices,
        kv_indptr,
        kv_last_page_len,
        k_scale,
        v_scale,
        is_nhd(kv_layout),
    )


def append_paged_mla_kv_cache(
    append_ckv: torch.Tensor,
    append_kpe: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    ckv_cache: torch.Tensor,
    kpe_cache: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
) -> None:
    """Write latents and their rotary parts, like FlashInfer's function of this name.

    append_ckv [tokens, rank], append_kpe [tokens, rope]; ckv_cache [pages, page_size, rank], kpe_cache [pages,
    page_size, rope], which may be views of one tensor; indices as for append_paged_kv_cache.
    """
    build.load().append_paged_mla_kv_cache(
        append_ckv,
        append_kpe,
        batch_indices,
        positions,
        ckv_cache,
        kpe_cache,
        kv_indices,
        kv_indptr,
        kv_last_page_len,
    )


def reshape_and_cache_flash(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str = "auto",
    k_scale: float | torch.Tensor = 1.0,
    v_scale: float | torch.Tensor = 1.0,
    *,
    kv_layout: str = "NHD",
) -> None:
    """Write token i to slot slot_mapping[i], like vLLM's function of this name, and skip negative slots.

    key and value [tokens or more, heads, dim]; caches [pages, page_size, heads, dim], or [pages, heads, page_size, dim]
    with kv_layout "HND"; slot_mapping int64 [tokens]. With kv_cache_dtype "fp8" the caches are float8_e4m3fn, and hold
    key / k_scale and value / v_scale: numbers, or float32 [heads].
    """
    _check_dtype(kv_cache_dtype, key, key_cache)
    build.load().reshape_and_cache_flash(
        key, value, key_cache, value_cache, slot_mapping, is_nhd(kv_layout), *_numbers(k_scale, v_scale)
    )


def _numbers(*scales: float | torch.Tensor) -> Iterator[float | torch.Tensor | None]:
    """Yield the scales as numbers, then as tensors."""
    yield from (1.0 if isinstance(scale, torch.Tensor) else scale for scale in scales)
    yield from (scale if isinstance(scale, torch.Tensor) else None for scale in scales)


def reshape_and_cache_per_token_head(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    k_scale_cache: torch.Tensor,
    v_scale_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Quantise each head of each token with a separate scale, and store both: vLLM's fp8_per_token_head.

    As `triton_reshape_and_cache_flash_per_token_head_quant` (vLLM PR 38378): key and value [tokens or more, heads,
    dim]; caches float8_e4m3fn [pages, page_size, heads, dim], scale caches float32 [pages, page_size, heads], of any
    strides; slot_mapping int64 [tokens], where negative slots are skipped. A scale is the largest magnitude over 448,
    but at least 1e-6.
    """
    build.load().reshape_and_cache_per_token_head(
        key, value, key_cache, value_cache, k_scale_cache, v_scale_cache, slot_mapping
    )


def concat_and_cache_mla(
    kv_c: torch.Tensor,
    k_pe: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str = "auto",
    scale: float = 1.0,
) -> None:
    """Write token i's latent and its rotary part to slot slot_mapping[i], like vLLM's function of this name.

    kv_c [tokens or more, rank], k_pe [tokens or more, rope]; kv_cache [pages, page_size, rank + rope]; the rest as for
    reshape_and_cache_flash.
    """
    _check_dtype(kv_cache_dtype, kv_c, kv_cache)
    build.load().concat_and_cache_mla(kv_c, k_pe, kv_cache, slot_mapping, scale)


def store_kv_cache(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    indices: torch.Tensor,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    reserved_skip_index: int = 0,
) -> None:
    """Write token i to token indices[i] of the caches, like SGLang's store_cache, and skip those at the reserved index.

    k and v [tokens, heads, dim]; caches [slots, heads, dim]; indices int32 or int64 [tokens]. Caches of float8_e4m3fn
    hold k / k_scale and v / v_scale. No other index is skipped or checked; a reserved one of -1 skips only that.
    """
    build.load().store_kv_cache(k, v, k_cache, v_cache, indices, k_scale, v_scale, reserved_skip_index)


def set_mla_kv_buffer(
    kv_buffer: torch.Tensor,
    loc: torch.Tensor,
    cache_k_nope: torch.Tensor,
    cache_k_rope: torch.Tensor,
    reserved_skip_index: int = 0,
) -> None:
    """Write the latent of token i to token loc[i], like SGLang's function, and skip those at the reserved index.

    kv_buffer [slots, 1, rank + rope]; cache_k_nope [tokens, 1, rank], cache_k_rope [tokens, 1, rope]; loc as the
    indices of store_kv_cache. All have one dtype.
    """
    build.load().set_mla_kv_buffer(kv_buffer, loc, cache_k_nope, cache_k_rope, reserved_skip_index)


def _check_dtype(kv_cache_dtype: str, tokens: torch.Tensor, cache: torch.Tensor) -> None:
    """Raise ValueError unless `kv_cache_dtype` is "fp8" exactly where tokens are quantised."""
    quantised = cache.dtype == torch.float8_e4m3fn and tokens.dtype != cache.dtype
    if quantised is not (kv_cache_dtype in _FP8):
        raise ValueError(f"kv_cache_dtype is {kv_cache_dtype!r} for {tokens.dtype} in a cache of {cache.dtype}")
