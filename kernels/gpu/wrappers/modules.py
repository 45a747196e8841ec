"""The modules of FlashInfer that the wrappers load for a geometry, by the functions that make them (jit/attention)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.reference.bucket import Bucket

_NO_POSITIONS = 0
"""PosEncodingMode.NONE."""


def prefill_modules(bucket: Bucket, backend: str) -> tuple[Module, ...]:
    """Those of BatchPrefillWith{Paged,Ragged}KVCacheWrapper with fa2 or fa3."""
    return _each_variant(bucket, f"{backend.upper()} prefill", partial(_prefill_spec, backend))


def decode_modules(bucket: Bucket) -> tuple[Module, ...]:
    """Those of BatchDecodeWithPagedKVCacheWrapper on CUDA cores."""
    return _each_variant(bucket, "batch decode", _decode_spec)


def _each_variant(bucket: Bucket, kind: str, spec: Callable[..., Any]) -> tuple[Module, ...]:
    """A module for each combination of window or none and soft cap or none, which are compiled in."""
    windows = sorted({left >= 0 for left in bucket.windows})
    caps = sorted({cap > 0 for cap in bucket.soft_caps})
    dtypes = (bucket.dtype.torch_dtype, bucket.kv_dtype.torch_dtype)
    dims = (bucket.head_dim_qk, bucket.head_dim_vo)
    return tuple(
        Module(
            name=f"{kind} {_words(bucket)}{', window' * window}{', soft cap' * cap}",
            spec=partial(spec, dtypes, dims, window, cap),
        )
        for window in windows
        for cap in caps
    )


def _words(bucket: Bucket) -> str:
    kv = "" if bucket.kv_dtype is bucket.dtype else f" over {bucket.kv_dtype.value} KV"
    same = bucket.head_dim_qk == bucket.head_dim_vo
    dims = f"{bucket.head_dim_qk}" if same else f"{bucket.head_dim_qk} and {bucket.head_dim_vo}"
    return f"{bucket.dtype.value}{kv}, head dim {dims}"


def _prefill_spec(
    backend: str, dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool
) -> Any:
    from flashinfer.jit.attention import modules  # noqa: PLC0415 - makes a CUDA context

    # FA2's module for K and V of the same strides, where a release has two (0.7.2): all views here have the same.
    primary = getattr(modules, "_gen_batch_prefill_primary_module", modules.gen_batch_prefill_module)
    generate = primary if backend == "fa2" else modules.gen_batch_prefill_module
    return generate(backend, *_described(dtypes, dims), window, cap, False)


def _decode_spec(dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool) -> Any:
    from flashinfer.jit.attention.modules import gen_batch_decode_module  # noqa: PLC0415 - makes a CUDA context

    return gen_batch_decode_module(*_described(dtypes, dims), window, cap)


_Described = tuple[torch.dtype, torch.dtype, torch.dtype, torch.dtype, int, int, int]


def _described(dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int]) -> _Described:
    """What both are told: the dtypes of q, of KV, of the output and of indices, head dims, positions."""
    query, kv = dtypes
    return (query, kv, query, torch.int32, *dims, _NO_POSITIONS)
