"""The native writers' functions called with a step's arguments, each as its library's server would call it.

Exported scripts include their source, so they call functions by their bare names.
"""

import torch

from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import is_nhd
from attnfuzz.kernels.native.transform_ops import apply_rope, copy_blocks, gather_cache, move_kv_cache
from attnfuzz.kernels.native.write_ops import (
    append_paged_kv_cache,
    append_paged_mla_kv_cache,
    concat_and_cache_mla,
    nvfp4_quantize_append_paged_kv_cache,
    reshape_and_cache_flash,
    reshape_and_cache_per_token_head,
    set_mla_kv_buffer,
    store_kv_cache,
)


def append(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    kv_layout: str,
) -> None:
    """Append to a paged cache in FlashInfer's way."""
    append_paged_kv_cache(
        key,
        value,
        batch_indices,
        positions,
        (k_cache, v_cache),
        kv_indices,
        kv_indptr,
        kv_last_page_len,
        kv_layout,
    )


def append_nvfp4(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scales: torch.Tensor,
    v_scales: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str,
) -> None:
    """Quantise to NVFP4 and append in FlashInfer's way."""
    nvfp4_quantize_append_paged_kv_cache(
        key,
        value,
        batch_indices,
        positions,
        (k_cache, v_cache),
        (k_scales, v_scales),
        kv_indices,
        kv_indptr,
        kv_last_page_len,
        k_scale,
        v_scale,
        kv_layout,
    )


def append_mla(
    *,
    key: torch.Tensor,
    kv_cache: torch.Tensor,
    rank: int,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
) -> None:
    """Append latents in FlashInfer's way: both parts of a latent have a cache, which are views of one."""
    tokens, cache = key.squeeze(1), kv_cache.squeeze(1)
    append_paged_mla_kv_cache(
        tokens[:, :rank],
        tokens[:, rank:],
        batch_indices,
        positions,
        cache[..., :rank],
        cache[..., rank:],
        kv_indices,
        kv_indptr,
        kv_last_page_len,
    )


def reshape_and_cache(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str,
) -> None:
    """Write to slots in vLLM's way."""
    reshape_and_cache_flash(
        key, value, k_cache, v_cache, slot_mapping, _kv_cache_dtype(k_cache), k_scale, v_scale, kv_layout=kv_layout
    )


def reshape_and_cache_head(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scales: torch.Tensor,
    v_scales: torch.Tensor,
    kv_layout: str,
) -> None:
    """Write to slots in vLLM's way, with a given scale for each head."""
    reshape_and_cache_flash(key, value, k_cache, v_cache, slot_mapping, "fp8", k_scales, v_scales, kv_layout=kv_layout)


def reshape_and_cache_token_head(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scales: torch.Tensor,
    v_scales: torch.Tensor,
    kv_layout: str,
) -> None:
    """Write to slots in vLLM's way, with a scale that is computed for each head of each token."""
    if kv_layout == "HND":
        k_cache, v_cache, k_scales, v_scales = (each.transpose(1, 2) for each in (k_cache, v_cache, k_scales, v_scales))
    reshape_and_cache_per_token_head(key, value, k_cache, v_cache, k_scales, v_scales, slot_mapping)


def reshape_and_cache_blocks(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scales: torch.Tensor,
    v_scales: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str,
) -> None:
    """Quantise token i to NVFP4, and write it to slot slot_mapping[i], like vLLM's reshape_and_cache_nvfp4_kernel.

    Caches uint8 [pages, page_size, heads, dim / 2], scales of blocks float8_e4m3fn [pages, page_size, heads, dim / 16],
    those of values swizzled; the rest as for reshape_and_cache_flash.
    """
    build.load().reshape_and_cache_nvfp4(
        key, value, k_cache, v_cache, k_scales, v_scales, slot_mapping, k_scale, v_scale, is_nhd(kv_layout)
    )


def concat_and_cache(
    *, key: torch.Tensor, kv_cache: torch.Tensor, rank: int, slot_mapping: torch.Tensor, k_scale: float
) -> None:
    """Write latents to slots in vLLM's way."""
    tokens, cache = key.squeeze(1), kv_cache.squeeze(1)
    concat_and_cache_mla(tokens[:, :rank], tokens[:, rank:], cache, slot_mapping, _kv_cache_dtype(cache), k_scale)


def store_cache(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str,
    reserved_skip_index: int = 0,
) -> None:
    """Write to the tokens of a token-major pool in SGLang's way."""
    if kv_layout == "HND":
        k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    pools = k_cache.flatten(0, 1), v_cache.flatten(0, 1)
    store_kv_cache(key, value, *pools, slot_mapping, k_scale, v_scale, reserved_skip_index)


def set_mla(
    *,
    key: torch.Tensor,
    kv_cache: torch.Tensor,
    rank: int,
    slot_mapping: torch.Tensor,
    reserved_skip_index: int = 0,
) -> None:
    """Write latents to the tokens of a token-major pool in SGLang's way."""
    pool = kv_cache.flatten(0, 2).unsqueeze(1)
    set_mla_kv_buffer(pool, slot_mapping, key[..., :rank], key[..., rank:], reserved_skip_index)


def _kv_cache_dtype(cache: torch.Tensor) -> str:
    return "fp8" if cache.dtype == torch.float8_e4m3fn else "auto"


def rope_append(
    *,
    query: torch.Tensor,
    query_out: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    rope_positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    k_scale: float,
    v_scale: float,
    kv_layout: str,
) -> None:
    """Rotate, quantise and append, as FlashInfer's rope_quantize_fp8_append_paged_kv_cache does.

    As apply_rope and append_paged_kv_cache together, but tokens of a negative request are skipped, and caches of any
    dtype are taken: those of float8_e4m3fn hold key / k_scale and value / v_scale.
    """
    _rotate_query(query, query_out, rope_positions, cos_sin_cache, 0, is_neox)
    build.load().rope_append(
        key,
        value,
        rope_positions,
        cos_sin_cache,
        is_neox,
        batch_indices,
        positions,
        k_cache,
        v_cache,
        kv_indices,
        kv_indptr,
        kv_last_page_len,
        is_nhd(kv_layout),
        k_scale,
        v_scale,
    )


def _rotate_query(
    query: torch.Tensor, out: torch.Tensor, positions: torch.Tensor, table: torch.Tensor, first: int, is_neox: bool
) -> None:
    build.load().apply_rope(query, out, positions, table, 1.0, table.shape[1], first, is_neox, 1.0)


def rope_append_mla(
    *,
    query: torch.Tensor,
    query_out: torch.Tensor,
    key: torch.Tensor,
    kv_cache: torch.Tensor,
    rank: int,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_last_page_len: torch.Tensor,
    rope_positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    k_scale: float,
) -> None:
    """Rotate, quantise and append latents: their first `rank` elements as they are, the others rotated."""
    tokens = key.squeeze(1)
    _rotate_query(query, query_out, rope_positions, cos_sin_cache, rank, is_neox)
    build.load().rope_append_mla(
        tokens[:, :rank],
        tokens[:, rank:],
        rope_positions,
        cos_sin_cache,
        is_neox,
        batch_indices,
        positions,
        kv_cache.squeeze(1),
        kv_indices,
        kv_indptr,
        kv_last_page_len,
        k_scale,
    )


def rope_store(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    rope_positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    rotary_dim: int,
    is_neox: bool,
    k_scale: float,
    v_scale: float,
    kv_layout: str,
) -> None:
    """Rotate in place, and write to the tokens of a token-major pool, as SGLang's fused_rope_store does."""
    apply_rope(query, key, rope_positions, rotary_dim, cos_sin_cache, is_neox=is_neox)
    store_cache(
        key=key,
        value=value,
        k_cache=k_cache,
        v_cache=v_cache,
        slot_mapping=slot_mapping,
        k_scale=k_scale,
        v_scale=v_scale,
        kv_layout=kv_layout,
    )


def rotate(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    rope_positions: torch.Tensor,
    rope_theta: float,
    rotary_dim: int,
    is_neox: bool,
) -> None:
    """Rotate in place by computed angles, as FlashInfer's apply_rope_pos_ids_inplace does."""
    apply_rope(query, key, rope_positions, rotary_dim, None, rope_theta, is_neox=is_neox)


def rotate_latents(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    rank: int,
    rope_positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    rotary_dim: int,
    is_neox: bool,
) -> None:
    """Rotate the rotary parts of latents and of their queries in place."""
    apply_rope(query, key, rope_positions, rotary_dim, cos_sin_cache, is_neox=is_neox, first=rank)


def rotate_and_quantise(
    *,
    query: torch.Tensor,
    query_out: torch.Tensor,
    key: torch.Tensor,
    key_out: torch.Tensor,
    rope_positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    rotary_dim: int,
    is_neox: bool,
    k_scale: float,
) -> None:
    """Rotate by a table, and convert to the dtype of the cache, as FlashInfer's rope_quantize_fp8 does."""
    apply_rope(
        query,
        key,
        rope_positions,
        rotary_dim,
        cos_sin_cache,
        is_neox=is_neox,
        query_out=query_out,
        key_out=key_out,
        k_scale=k_scale,
    )


def gather(
    *,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    key_out: torch.Tensor,
    value_out: torch.Tensor,
    block_tables: torch.Tensor,
    seq_starts: torch.Tensor,
    out_indptr: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str,
) -> None:
    """Gather keys and values, each in vLLM's way."""
    gather_cache(k_cache, key_out, block_tables, out_indptr, seq_starts, k_scale, kv_layout=kv_layout)
    gather_cache(v_cache, value_out, block_tables, out_indptr, seq_starts, v_scale, kv_layout=kv_layout)


def gather_mla(
    *,
    kv_cache: torch.Tensor,
    key_out: torch.Tensor,
    block_tables: torch.Tensor,
    seq_starts: torch.Tensor,
    out_indptr: torch.Tensor,
    k_scale: float,
    kv_layout: str,
) -> None:
    """Gather latents in vLLM's way."""
    gather_cache(kv_cache, key_out, block_tables, out_indptr, seq_starts, k_scale, kv_layout=kv_layout)


def copy_pages(*, k_cache: torch.Tensor, v_cache: torch.Tensor, page_pairs: torch.Tensor, kv_layout: str) -> None:
    """Copy pages of keys and of values in vLLM's way."""
    for cache in (k_cache, v_cache):
        copy_blocks(cache, page_pairs, kv_layout=kv_layout)


def move_tokens(
    *,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    source_slots: torch.Tensor,
    target_slots: torch.Tensor,
    kv_layout: str,
) -> None:
    """Move keys and values among slots in SGLang's way."""
    for cache in (k_cache, v_cache):
        move_kv_cache(cache, target_slots, source_slots, kv_layout=kv_layout)
