"""FlashInfer's writers of the KV cache on a GPU: append_paged_kv_cache and append_paged_mla_kv_cache, and of NVFP4.

The first two copy: tokens need the dtype of the cache, which FlashInfer does not check (csrc/page.cu dispatches on the
cache's dtype alone), so callers with an fp8 cache convert before. They find a token's page as
`kv_indptr[batch_indices[i]]` plus its position in pages (include/flashinfer/page.cuh, AppendPagedKVCacheKernel), for
each of the tokens that there are: neither batch indices nor page ids are checked, and -1 reads in front of kv_indptr.
So does nvfp4_quantize_append_paged_kv_cache, which quantises; its variant with a slot mapping skips negative slots, and
those behind the pool. Both write block scales linearly.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import torch
from msgspec import structs

from attnfuzz.kernels.cache_writes.rotation import Rotation
from attnfuzz.kernels.cache_writes.stored import Conversion
from attnfuzz.kernels.cache_writes.writer_backend import in_shared_pools
from attnfuzz.kernels.cache_writes.writer_session import Writer, WriterSession
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.flashinfer_op import flashinfer_op
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend, bucket
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.planning.latent_parts import latent_parts
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.cache_scales import quantised
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, Granularity, KvView, Mode, OtherGroup, PaddedSlot, QueryView
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout, Latent
from attnfuzz.reference.noise import NoiseModel

_MODULE: Final = "flashinfer.page"
APPEND: Final = flashinfer_op(_MODULE, "append_paged_kv_cache", frozenset({"paged_kv_cache"}))
APPEND_MLA: Final = flashinfer_op(_MODULE, "append_paged_mla_kv_cache", frozenset({"ckv_cache", "kpe_cache"}))

APPEND_NVFP4: Final = flashinfer_op(
    _MODULE, "nvfp4_quantize_append_paged_kv_cache", frozenset({"paged_kv_cache", "kv_cache_sf"})
)
STORE_NVFP4: Final = flashinfer_op(
    _MODULE, "nvfp4_quantize_append_paged_kv_cache_with_slot_mapping", frozenset({"paged_kv_cache", "kv_cache_sf"})
)

_BATCH = ("batch_indices", "positions", "kv_indices", "kv_indptr", "kv_last_page_len")


def _append(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str,
    **others: Any,
) -> Mapping[str, Any]:
    """Arrange the arguments of APPEND."""
    return {
        "append_key": _converted(key, k_cache.dtype, k_scale),
        "append_value": _converted(value, v_cache.dtype, v_scale),
        "paged_kv_cache": (k_cache, v_cache),
        "kv_layout": kv_layout,
        **_batch(others),
    }


def _append_nvfp4(**described: Any) -> Mapping[str, Any]:
    """Arrange the arguments of APPEND_NVFP4."""
    return {**_quantised(**described), **_batch(described)}


def _store_nvfp4(*, slot_mapping: torch.Tensor, **described: Any) -> Mapping[str, Any]:
    """Arrange the arguments of STORE_NVFP4."""
    return {**_quantised(**described), "slot_mapping": slot_mapping}


def _quantised(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k_scales: torch.Tensor,
    v_scales: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str,
    **_: Any,
) -> dict[str, Any]:
    return {
        "append_key": key,
        "append_value": value,
        "paged_kv_cache": (k_cache, v_cache),
        "kv_cache_sf": (k_scales, v_scales),
        "k_scale": k_scale,
        "v_scale": v_scale,
        "kv_layout": kv_layout,
    }


def _append_mla(*, key: torch.Tensor, kv_cache: torch.Tensor, **others: Any) -> Mapping[str, Any]:
    """Arrange the arguments of APPEND_MLA: both parts of the latents are slices of the same rows."""
    ckv, kpe = latent_parts(key[:, 0])
    ckv_cache, kpe_cache = latent_parts(kv_cache.flatten(1, 2))
    caches = {"ckv_cache": ckv_cache, "kpe_cache": kpe_cache}
    return {"append_ckv": ckv, "append_kpe": kpe, **caches, **_batch(others)}


def _converted(tokens: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """Convert the tokens to the cache's dtype."""
    return tokens if tokens.dtype == dtype else quantised(tokens.float(), scale)


def _batch(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in _BATCH}


def _nothing_more() -> None:
    """Take no argument: all are arranged."""


def _spec() -> Any:
    from flashinfer.jit import page  # noqa: PLC0415 - it creates a CUDA context

    return page.gen_page_module()


PAGE_MODULE: Final = Module("writes into a paged KV cache", _spec)


def _buckets(dtypes: Iterable[tuple[DType, DType]]) -> tuple[Bucket, ...]:
    # Threads of a block: a head takes 8 to 32, so that 16 heads fit (AppendPagedKVCache). Head dims: DISPATCH_HEAD_DIM.
    return tuple(
        bucket(
            dtype,
            head_dim,
            kv_dtype=kv_dtype,
            heads=((1, 1), (4, 2), (3, 3), (8, 8), (16, 16)),
            page_sizes=(16, 1, 4, 64),
            layouts=(KvLayout.NHD, KvLayout.HND),
        )
        for dtype, kv_dtype in dtypes
        for head_dim in (64, 128, 256)
    )


COPIES: Final = Capability(
    device=Device.CUDA,
    buckets=_buckets((each, each) for each in (DType.BFLOAT16, DType.FLOAT16)),
    modes=Mode.of_kernels(),
    graph_modes=SPECULATIVE,
    writes=True,
    padding=True,
    # Every token has a row, whose page may be a dummy.
    padded_slots=(PaddedSlot.DUMMY,),
    empty_kv=False,
    kv_shorter_than_q=False,
    # Only the last dimension has to be dense. Caches have the same strides, and new tokens any (csrc/page.cu).
    query_views=tuple(QueryView),
    value_strides=True,
    kv_views=tuple(KvView),
)
_DEEPSEEK: Final = tuple(
    Bucket(
        dtype=dtype,
        kv_dtype=dtype,
        head_dim_qk=576,
        head_dim_vo=512,
        heads=((16, 1),),
        page_sizes=(16, 1, 64),
        layouts=(KvLayout.HND, KvLayout.NHD),
        # AppendPagedKVMlaCache is compiled for these sizes alone.
        latent=Latent(rank=512, rope=64, nope=128, vo=128),
    )
    for dtype in (DType.BFLOAT16, DType.FLOAT16)
)


# Converted tokens lie in a buffer of their own, which a replay of a graph would not refresh.
COPIES_IN_FP8: Final = structs.replace(
    COPIES, buckets=_buckets([(DType.BFLOAT16, DType.FLOAT8_E4M3)]), graph_modes=(), kv_scales=True, value_strides=False
)
COPIES_OF_LATENTS: Final = structs.replace(COPIES, buckets=_DEEPSEEK, value_strides=False)

_FAST: Final = Conversion(error=2.0**-21)
"""Divisions of nvcc's -use_fast_math: two of them, with errors of 2 ULP."""

_NVFP4: Final = in_shared_pools(
    structs.replace(
        COPIES,
        buckets=_buckets((each, DType.FLOAT4_E2M1) for each in (DType.BFLOAT16, DType.FLOAT16)),
        kv_scales=True,
        granularities=(Granularity.BLOCK,),
    ),
    groups=(),
)
_SAME: Final = (OtherGroup.SAME,)
"""Other groups have half the head dim, or twice the heads: AppendPagedKVCache takes few of each."""


def gpu_writer(
    name: str,
    op: Op,
    arrange: Callable[..., Mapping[str, Any]],
    capability: Capability,
    conversion: Conversion = Conversion(),
    *,
    module: Module = PAGE_MODULE,
    kind: type[WriterSession] = WriterSession,
    rotation: Rotation = Rotation(),
) -> GpuBackend:
    """Make a writer of a function in FlashInfer's `module`, whose arguments are all arranged."""
    writer = Writer(op, conversion, arrange, parameters=_nothing_more, rotation=rotation)
    return GpuBackend(
        name=name,
        archs=frozenset(Arch),
        capability=capability,
        contract=Contract(),
        session=partial(kind, writer),
        kernels=(op,),
        theoretical=lambda _: NoiseModel.unknown_kernel(),
        modules_of=lambda _: (module,),
    )


FLASHINFER_WRITERS: Final = (
    gpu_writer("flashinfer:append", APPEND, _append, in_shared_pools(COPIES, _SAME)),
    gpu_writer("flashinfer:append_fp8", APPEND, _append, in_shared_pools(COPIES_IN_FP8, _SAME)),
    gpu_writer("flashinfer:append_nvfp4", APPEND_NVFP4, _append_nvfp4, _NVFP4, _FAST),
    gpu_writer(
        "flashinfer:store_nvfp4",
        STORE_NVFP4,
        _store_nvfp4,
        # Scales as numbers become tensors, which a capture does not allow.
        structs.replace(_NVFP4, graph_modes=(), padded_slots=(PaddedSlot.NOWHERE,)),
        _FAST,
    ),
    gpu_writer("flashinfer:append_mla", APPEND_MLA, _append_mla, COPIES_OF_LATENTS),
)
