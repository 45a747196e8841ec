"""Native kernels that write into a KV cache, as functions with the names and arguments of vLLM's, which engines call.

Tokens and caches are float32, bfloat16, float16 or float8_e4m3fn, contiguous in their last axis, with arbitrary other
strides, and on the CPU. Indices are trusted as the libraries' kernels trust them (TRAPS.md).
"""

from collections.abc import Iterator
from typing import Final

import torch

from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import is_nhd

_FP8: Final = ("fp8", "fp8_e4m3")


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


def _check_dtype(kv_cache_dtype: str, tokens: torch.Tensor, cache: torch.Tensor) -> None:
    """Raise ValueError unless `kv_cache_dtype` is "fp8" exactly where tokens are quantised."""
    quantised = cache.dtype == torch.float8_e4m3fn and tokens.dtype != cache.dtype
    if quantised is not (kv_cache_dtype in _FP8):
        raise ValueError(f"kv_cache_dtype is {kv_cache_dtype!r} for {tokens.dtype} in a cache of {cache.dtype}")
