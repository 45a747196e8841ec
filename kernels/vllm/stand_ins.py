"""Replacements in vLLM's modules for FlashInfer, and for vLLM's own kernel that writes the KV cache."""

from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native import write_ops
from attnfuzz.kernels.releases.answers import ServerMock
from attnfuzz.kernels.releases.recording import outside
from attnfuzz.kernels.releases.stand_ins import MULTIPROCESSORS, current, entry
from attnfuzz.kernels.releases.wrappers import REPLACED
from attnfuzz.kernels.vllm.flash_attention import FUNCTIONS
from attnfuzz.kernels.vllm.hopper import XQA, decode, quantise_query
from attnfuzz.kernels.vllm.mla.kernels import merge
from attnfuzz.kernels.vllm.pool import WRITER

_XQA: Final = ("flashinfer_xqa_batch_decode_with_kv_cache",)
"""The functions of the FlashInfer backend that run XQA (0.28.0: v1/attention/backends/flashinfer.py:44)."""

WRITE: Final = Op(
    WRITER,
    write_ops.reshape_and_cache_flash,
    frozenset({"key_cache", "value_cache"}),
)
"""The stand-in for vLLM's kernel, which is compiled for GPUs (csrc/cache_kernels.cu)."""


def replace_kernels(backend: Any) -> None:
    """Install the replacements in the module of the FlashInfer backend and in torch's namespace of vLLM's kernels.

    The module imports FlashInfer's functions by name (0.26.0: v1/attention/backends/flashinfer.py:18).
    """
    backend.trtllm_batch_decode_with_kv_cache = decode
    backend.trtllm_batch_context_with_kv_cache = entry("trtllm_batch_context_with_kv_cache")
    if hasattr(backend, "get_device_sm_count"):
        # 0.33.0: v1/attention/backends/flashinfer.py:2099
        backend.get_device_sm_count = lambda _device: MULTIPROCESSORS
    for name, wrapper in REPLACED.items():
        if hasattr(backend, name):
            setattr(backend, name, wrapper)
    for name in _XQA:
        if hasattr(backend, name):
            setattr(backend, name, entry(XQA.name))
    library: Any = torch.ops._C_cache_ops  # noqa: SLF001 - the name of vLLM's library
    library.reshape_and_cache_flash = _write
    library = torch.ops._C  # noqa: SLF001
    library.static_scaled_fp8_quant, library.merge_attn_states = quantise_query, merge
    library = torch.ops._vllm_fa3_C  # noqa: SLF001
    for name, function in FUNCTIONS.items():
        setattr(library, name, function)


def replace_model(module: Any) -> None:
    """Replace a module's multimodal registry by that of a model that takes text only."""
    # 0.26.0: v1/worker/gpu_model_runner.py:529
    module.MULTIMODAL_REGISTRY = ServerMock("mm_registry", supports_multimodal_inputs=lambda _: False)


def _write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """Write tokens into the cache, quantised to FP8 if it is a tensor of bytes."""
    lower = current(WRITE.name)
    with outside():
        # The scales are constants of a layer, which a graph may hold.
        quantised = {"kv_cache_dtype": kv_cache_dtype, "k_scale": k_scale.item(), "v_scale": v_scale.item()}
    lower.launch(
        lower.op(WRITE.name),
        {
            "key": key,
            "value": value,
            "key_cache": _numbers(key_cache),
            "value_cache": _numbers(value_cache),
            "slot_mapping": slot_mapping,
            **({} if key_cache.dtype == key.dtype else quantised),
        },
    )


def _numbers(cache: torch.Tensor) -> torch.Tensor:
    """Return a cache of bytes as FP8, any other unchanged."""
    return cache.view(torch.float8_e4m3fn) if cache.dtype == torch.uint8 else cache
