"""The native kernels that write into a KV cache, rotate, gather and copy, called with a step's arguments.

Tokens and caches are float32, bfloat16, float16 or float8_e4m3fn, contiguous in their last axis, with arbitrary other
strides, and on the CPU. Indices are trusted as the libraries' kernels trust them (native/TRAPS.md). Exported scripts
include the source of these functions, so they call each other by their bare names.
"""

import torch

from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import is_nhd
from attnfuzz.kernels.native.transform_ops import gather_cache
from attnfuzz.kernels.native.write_ops import concat_and_cache_mla, reshape_and_cache_flash


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
    """Write each token to its position of its request, like FlashInfer's append_paged_kv_cache.

    kv_indices has the pages of all requests, those of request b from kv_indptr[b] on. batch_indices and positions are
    not checked, and kv_last_page_len is not read.
    """
    pages = kv_indices, kv_indptr, kv_last_page_len
    build.load().append_paged_kv_cache(
        key, value, batch_indices, positions, k_cache, v_cache, *pages, is_nhd(kv_layout)
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
    """Quantise tokens to NVFP4, and append them, like FlashInfer's nvfp4_quantize_append_paged_kv_cache.

    Caches uint8 with a last axis of dim / 2, scales float8_e4m3fn with one of dim / 16, linear. A block's scale is its
    largest magnitude over 6 and over k_scale or v_scale.
    """
    caches, pages = (k_cache, v_cache, k_scales, v_scales), (kv_indices, kv_indptr, kv_last_page_len)
    build.load().nvfp4_quantize_append_paged_kv_cache(
        key, value, batch_indices, positions, *caches, *pages, k_scale, v_scale, is_nhd(kv_layout)
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
    """Append latents, like FlashInfer's append_paged_mla_kv_cache: both parts have a cache, which are views of one."""
    tokens, cache = key.squeeze(1), kv_cache.squeeze(1)
    caches, pages = (cache[..., :rank], cache[..., rank:]), (kv_indices, kv_indptr, kv_last_page_len)
    build.load().append_paged_mla_kv_cache(
        tokens[:, :rank], tokens[:, rank:], batch_indices, positions, *caches, *pages
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
    """Quantise each head of each token with a scale of its own, and store both: vLLM's fp8_per_token_head.

    As `triton_reshape_and_cache_flash_per_token_head_quant` (vLLM PR 38378): caches float8_e4m3fn, scales float32, of
    any strides; negative slots are skipped. A scale is the largest magnitude over 448, and 1e-6 or more.
    """
    caches: tuple[torch.Tensor, ...] = (k_cache, v_cache, k_scales, v_scales)
    if kv_layout == "HND":
        caches = tuple(each.transpose(1, 2) for each in caches)
    build.load().reshape_and_cache_per_token_head(key, value, *caches, slot_mapping)


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
    """Write to the tokens of a token-major pool, like SGLang's store_cache, and skip those at the reserved index.

    slot_mapping int32 or int64. Caches of float8_e4m3fn hold key / k_scale and value / v_scale. No other index is
    skipped or checked; a reserved one of -1 skips only that.
    """
    if kv_layout == "HND":
        k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    pools = k_cache.flatten(0, 1), v_cache.flatten(0, 1)
    build.load().store_kv_cache(key, value, *pools, slot_mapping, k_scale, v_scale, reserved_skip_index)


def set_mla(
    *,
    key: torch.Tensor,
    kv_cache: torch.Tensor,
    rank: int,
    slot_mapping: torch.Tensor,
    reserved_skip_index: int = 0,
) -> None:
    """Write latents to the tokens of a token-major pool, like SGLang's set_mla_kv_buffer, as store_cache does."""
    pool = kv_cache.flatten(0, 2).unsqueeze(1)
    build.load().set_mla_kv_buffer(pool, slot_mapping, key[..., :rank], key[..., rank:], reserved_skip_index)


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

    As rotate_and_quantise and append together, but tokens of a negative request are skipped. Caches have any dtype:
    those of float8_e4m3fn hold key / k_scale and value / v_scale.
    """
    _rotate(query, query_out, rope_positions, cos_sin_cache, cos_sin_cache.shape[1], is_neox)
    rope, pages = (rope_positions, cos_sin_cache, is_neox), (kv_indices, kv_indptr, kv_last_page_len)
    places = batch_indices, positions, k_cache, v_cache, *pages, is_nhd(kv_layout)
    build.load().rope_append(key, value, *rope, *places, k_scale, v_scale)


def _rotate(
    rows: torch.Tensor,
    out: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor | None,
    rotary_dim: int,
    is_neox: bool,
    *,
    first: int = 0,
    rope_theta: float = 1.0,
    scale: float = 1.0,
) -> None:
    """Write rows [tokens, heads, dim] to `out`, with `rotary_dim` elements from `first` on rotated.

    positions int64 [tokens]; cos_sin_cache float32 [positions, rotary_dim], cosines first; without it, angles are
    computed from rope_theta in fp32. An output of float8_e4m3fn holds the rotated rows / scale.
    """
    build.load().apply_rope(rows, out, positions, cos_sin_cache, rope_theta, rotary_dim, first, is_neox, scale)


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
    _rotate(query, query_out, rope_positions, cos_sin_cache, cos_sin_cache.shape[1], is_neox, first=rank)
    rope, pages = (rope_positions, cos_sin_cache, is_neox), (kv_indices, kv_indptr, kv_last_page_len)
    places = batch_indices, positions, kv_cache.squeeze(1), *pages
    build.load().rope_append_mla(tokens[:, :rank], tokens[:, rank:], *rope, *places, k_scale)


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
    for rows in (query, key):
        _rotate(rows, rows, rope_positions, cos_sin_cache, rotary_dim, is_neox)
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
    for rows in (query, key):
        _rotate(rows, rows, rope_positions, None, rotary_dim, is_neox, rope_theta=rope_theta)


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
    for rows in (query, key):
        _rotate(rows, rows, rope_positions, cos_sin_cache, rotary_dim, is_neox, first=rank)


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
    _rotate(query, query_out, rope_positions, cos_sin_cache, rotary_dim, is_neox)
    _rotate(key, key_out, rope_positions, cos_sin_cache, rotary_dim, is_neox, scale=k_scale)


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
    """Copy pages page_pairs[i, 0] to page_pairs[i, 1], in turn, like vLLM's copy_blocks."""
    for cache in (k_cache, v_cache):
        build.load().copy_blocks(cache, page_pairs, is_nhd(kv_layout))


def move_tokens(
    *,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    source_slots: torch.Tensor,
    target_slots: torch.Tensor,
    kv_layout: str,
) -> None:
    """Move token source_slots[i] to target_slots[i], like SGLang's pool: all are read before the first is written."""
    for cache in (k_cache, v_cache):
        build.load().move_kv_cache(cache, target_slots, source_slots, is_nhd(kv_layout))
