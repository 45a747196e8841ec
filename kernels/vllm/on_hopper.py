"""The backends of a release on a Hopper GPU: its code on FlashInfer's own kernels, or its own in Triton, compiled."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from msgspec import structs

from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.direct import xqa
from attnfuzz.kernels.gpu.hopper.backends import SMALL, WINDOWED
from attnfuzz.kernels.gpu.wrappers.backends import prefill_modules
from attnfuzz.kernels.gpu.wrappers.sinks import sink_modules
from attnfuzz.kernels.libraries.geometries import few_geometries
from attnfuzz.kernels.libraries.triton_vllm import FP8_NOISE
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.on_hopper import HopperRelease
from attnfuzz.kernels.vllm.backends import CONTRACT, absent, capability_of, open_session
from attnfuzz.kernels.vllm.kinds import KINDS
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import ROUNDOFF, NoiseModel

_LAYOUTS: Final = (KvLayout.NHD, KvLayout.HND)

_FLASHINFER: Final = KernelsBelow(
    (xqa.XQA_OP,),
    real=frozenset({xqa.XQA_OP.name}),
    # Split KV keeps partial outputs in the query's dtype, and merges them (mha.cu, toFp16 before mergeAndSave).
    roundings=2,
)

# A verify has as many queries as the step's longest request, and XQA a module for each number.
_DRAFTS: Final = (2, 3, 4)

_FLASHINFER_BUCKETS: Final = tuple(
    structs.replace(each, layouts=_LAYOUTS, strides=_DRAFTS) for each in (SMALL, WINDOWED)
)

_TRITON_BUCKETS: Final = few_geometries(
    (DType.BFLOAT16, DType.FLOAT16),
    heads=((2, 1), (8, 1), (3, 3)),
    head_dims=(64, 128),
    page_sizes=(16,),
    windows=True,
    sinks=True,
    soft_caps=True,
)
"""The geometries for Triton, which takes seconds to compile a kernel for each."""

_BUCKETS: Final = {
    "flashinfer_sm90": _FLASHINFER_BUCKETS,
    "triton": _TRITON_BUCKETS,
    "triton_fp8": tuple(
        structs.replace(each, kv_dtype=DType.FLOAT8_E4M3) for each in _TRITON_BUCKETS if each.dtype is DType.FLOAT16
    ),
}


_IN_16_BITS: Final[Mapping[str, Any]] = {"fp8_kv": False, "kv_scales": False, "kept_queries": False}
"""Excludes FP8 caches, on which FlashInfer's kernels compute in FP8, with another error."""


def hopper_backend_of(named: Named) -> HopperRelease:
    """Return the backend of a release on Hopper."""
    on_flashinfer = not KINDS[named.kind].interpreted
    kernels = _FLASHINFER if on_flashinfer else KernelsBelow(())
    return HopperRelease(
        name=str(named),
        named=named,
        absent=absent,
        archs=frozenset({Arch.HOPPER}),
        capability=_capability_of(named, **(_IN_16_BITS if on_flashinfer else {})),
        contract=CONTRACT,
        session=partial(open_session, named, kernels),
        kernels=kernels.ops,
        modules_of=_modules_of if on_flashinfer else lambda _: (),
        theoretical=_noise_of_flashinfer if on_flashinfer else partial(_noise_of_triton, named.kind),
    )


def _capability_of(named: Named, **less: Any) -> Capability:
    buckets = _BUCKETS[named.kind]
    return structs.replace(capability_of(named), device=Device.CUDA, buckets=buckets, patience=1.0, **less)


def _modules_of(bucket: Bucket) -> tuple[Module, ...]:
    sinks = sink_modules(bucket, "fa3") if any(bucket.sinks) else ()
    return (*xqa.modules_of(bucket, ragged=True), *prefill_modules(bucket, "fa3"), *sinks)


def _noise_of_flashinfer(dtype: DType) -> NoiseModel:
    """Return the noise model of FlashInfer's kernels; XQA's is unknown."""
    del dtype
    return NoiseModel.unknown_kernel()


def _noise_of_triton(kind: str, dtype: DType) -> NoiseModel:
    """Return the noise of vLLM's Triton kernels.

    Weights are cast to the dtype of the values, relative to a running maximum that is initialized with the sink.
    """
    if KINDS[kind].capability.fp8_kv:
        return FP8_NOISE
    rounded = dtype.torch_dtype
    return structs.replace(NoiseModel.rounded_probabilities(rounded), peak=ROUNDOFF[rounded])
