"""The backends over `single_prefill_with_kv_cache` and `single_decode_with_kv_cache`, and their modules."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.edges import UNSAID_EDGES
from attnfuzz.kernels.gpu import function_argument_rules as rules
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.single.sessions import SINGLE_DECODE, SINGLE_PREFILL, SingleKind, SingleSession
from attnfuzz.kernels.gpu.visible import Arch
from attnfuzz.kernels.gpu.wrappers.backends import (
    CAPPED,
    CONTRACT,
    DECODE_BUCKETS,
    EIGHT_BITS,
    HALF,
    NO_POSITIONS,
    PLAIN,
    WINDOWED,
    decode_noise,
    each_variant,
    fa2_noise,
    fa3_noise,
)
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import KvView, Mode, QueryView
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel


def single_prefill_modules(bucket: Bucket, backend: str) -> tuple[Module, ...]:
    """The modules of single_prefill_with_kv_cache with fa2 or fa3."""
    return each_variant(bucket, f"{backend.upper()} single prefill", partial(_prefill_spec, backend))


def single_decode_modules(bucket: Bucket) -> tuple[Module, ...]:
    """The modules of single_decode_with_kv_cache on CUDA cores."""
    return each_variant(bucket, "single decode", _decode_spec)


def _prefill_spec(
    backend: str, dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool
) -> Any:
    from flashinfer.jit.attention.modules import gen_single_prefill_module  # noqa: PLC0415 - makes a CUDA context

    query, kv = dtypes
    return gen_single_prefill_module(backend, query, kv, query, *dims, NO_POSITIONS, window, cap, False)


def _decode_spec(dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool) -> Any:
    from flashinfer.jit.attention.modules import gen_single_decode_module  # noqa: PLC0415 - makes a CUDA context

    query, kv = dtypes
    return gen_single_decode_module(query, kv, query, *dims, NO_POSITIONS, window, cap)


_PATIENCE: Final = 4.0
"""A step of 600 requests is as many launches: judged twice, 1.8 s on an H200, and 36 to 46 s beside 13 jobs."""


def _unpaged(*buckets: Bucket) -> tuple[Bucket, ...]:
    """The buckets with one page size, as nothing has pages."""
    return tuple(msgspec.structs.replace(bucket, page_sizes=(16,)) for bucket in buckets)


def _of_layout(layout: KvLayout, *buckets: Bucket) -> tuple[Bucket, ...]:
    return tuple(msgspec.structs.replace(bucket, layouts=(layout,)) for bucket in buckets)


def _prefill(name: str, backend: str, buckets: tuple[Bucket, ...]) -> GpuBackend:
    fa2 = backend == "fa2"
    return GpuBackend(
        name=name,
        archs=frozenset(Arch if fa2 else {Arch.HOPPER}),
        capability=Capability(
            device=Device.CUDA,
            edges=UNSAID_EDGES,
            buckets=_unpaged(*buckets),
            modes=Mode.of_kernels(),
            kv_scales=True,
            padding=True,
            # FA2: "kv_len must be greater than or equal to qo_len" under a causal mask (attention/prefill.cuh,
            # SinglePrefillWithKVCacheDispatched).
            empty_kv=not fa2,
            kv_shorter_than_q=not fa2,
            query_views=tuple(QueryView),
            kv_views=tuple(KvView),
            arguments=rules.SINGLE_PREFILL,
            patience=_PATIENCE,
        ),
        contract=CONTRACT,
        session=partial(
            SingleSession, SingleKind(op=SINGLE_PREFILL, fixed={"causal": True, "backend": backend}, splits=fa2)
        ),
        kernels=(SINGLE_PREFILL,),
        modules_of=partial(single_prefill_modules, backend=backend),
        theoretical=fa2_noise if fa2 else fa3_noise,
    )


def _decode(
    name: str,
    buckets: tuple[Bucket, ...],
    theoretical: Callable[[DType], NoiseModel],
    modules_of: Callable[[Bucket], tuple[Module, ...]],
    *,
    tensor_cores: bool,
) -> GpuBackend:
    return GpuBackend(
        name=name,
        archs=frozenset(Arch),
        capability=Capability(
            device=Device.CUDA,
            edges=UNSAID_EDGES,
            buckets=_unpaged(*buckets),
            modes=(Mode.DECODE,),
            kv_scales=True,
            padding=True,
            # On CUDA cores, q [heads, dim], k and v must be contiguous (csrc/single_decode.cu, CHECK_INPUT).
            query_views=tuple(QueryView) if tensor_cores else (QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
            kv_views=tuple(KvView) if tensor_cores else (KvView.SEPARATE,),
            arguments=rules.TENSOR_CORE_DECODE if tensor_cores else rules.SINGLE_DECODE,
            patience=_PATIENCE,
        ),
        contract=CONTRACT,
        session=partial(
            SingleSession, SingleKind(op=SINGLE_DECODE, fixed={"use_tensor_cores": tensor_cores}, decode=True)
        ),
        kernels=(SINGLE_DECODE,),
        modules_of=modules_of,
        theoretical=theoretical,
    )


_FA2_BUCKETS: Final = (PLAIN, EIGHT_BITS, CAPPED)
_FA3_BUCKETS: Final = (HALF, WINDOWED)

SINGLE_BACKENDS: Final = (
    _prefill("fa2_single_prefill", "fa2", _FA2_BUCKETS),
    _prefill("fa3_single_prefill", "fa3", _of_layout(KvLayout.NHD, *_FA3_BUCKETS)),
    # The SM90 binding reads the lengths of HND tensors from the axes of NHD (csrc/single_prefill_sm90.cu: kv_len is
    # k.size(0)), and its failures would hide those of NHD.
    _prefill("fa3_single_prefill_hnd", "fa3", _of_layout(KvLayout.HND, *_FA3_BUCKETS)),
    _decode(
        "single_decode",
        (*DECODE_BUCKETS, CAPPED),
        decode_noise,
        single_decode_modules,
        tensor_cores=False,
    ),
    _decode(
        "single_decode_tensor_cores",
        _FA2_BUCKETS,
        fa2_noise,
        partial(single_prefill_modules, backend="fa2"),
        tensor_cores=True,
    ),
)
