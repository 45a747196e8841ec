"""The backends over FlashInfer's prefill and decode wrappers, and their modules (jit/attention)."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.arguments.edges import UNSAID_EDGES
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import argument_rules as rules
from attnfuzz.kernels.gpu import lives
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend, bucket
from attnfuzz.kernels.gpu.wrappers.paged import DECODE, FA2_PAGED, FA2_PAGED_PACKED, FA3_PAGED
from attnfuzz.kernels.gpu.wrappers.paged_session import PagedWrapperSession
from attnfuzz.kernels.gpu.wrappers.ragged import FA2_RAGGED, FA2_RAGGED_PACKED, FA3_RAGGED, RaggedSession
from attnfuzz.kernels.gpu.wrappers.wrapper import WrapperKind
from attnfuzz.kernels.interface.backend import Session
from attnfuzz.reference.arguments import ArgumentRule, EarlierUse
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, KvView, Mask, Mode, QueryView
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import ROUNDOFF, NoiseModel

NO_POSITIONS = 0
"""PosEncodingMode.NONE."""


def prefill_modules(bucket: Bucket, backend: str) -> tuple[Module, ...]:
    """List the modules of BatchPrefillWith{Paged,Ragged}KVCacheWrapper with fa2 or fa3."""
    return each_variant(bucket, f"{backend.upper()} prefill", partial(_prefill_spec, backend))


def fa2_paged_modules(bucket: Bucket) -> tuple[Module, ...]:
    """List the modules of BatchPrefillWithPagedKVCacheWrapper with fa2, also that of K and V of different strides."""
    different = each_variant(bucket, "FA2 paged prefill of different strides", _different_strides_spec)
    return (*masked_modules(bucket), *different)


def masked_modules(bucket: Bucket) -> tuple[Module, ...]:
    """List the modules of fa2, and the one which packs a mask into bits."""
    return (*prefill_modules(bucket, "fa2"), PACKING)


def _packing_spec() -> Any:
    from flashinfer.jit.quantization import gen_quantization_module  # noqa: PLC0415 - makes a CUDA context

    return gen_quantization_module()


PACKING: Final = Module("packing of bits", _packing_spec)
"""FlashInfer packs masks of bools with it."""


def decode_modules(bucket: Bucket) -> tuple[Module, ...]:
    """List the modules of BatchDecodeWithPagedKVCacheWrapper on CUDA cores."""
    return each_variant(bucket, "batch decode", _decode_spec)


def each_variant(bucket: Bucket, kind: str, spec: Callable[..., Any]) -> tuple[Module, ...]:
    """List a module for each combination of window or none and soft cap or none, which are compile-time choices."""
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

    # FA2's module for K and V of equal strides, if a release has two (0.7.2).
    primary = getattr(modules, "_gen_batch_prefill_primary_module", modules.gen_batch_prefill_module)
    generate = primary if backend == "fa2" else modules.gen_batch_prefill_module
    return generate(backend, *described(dtypes, dims), window, cap, False)


def _different_strides_spec(
    dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool
) -> Any:
    from flashinfer.jit.attention import modules  # noqa: PLC0415 - makes a CUDA context

    # A release without it (before 0.7.2) has one module for all strides.
    generate = getattr(modules, "_gen_batch_prefill_independent_paged_module", modules.gen_batch_prefill_module)
    return generate("fa2", *described(dtypes, dims), window, cap, False)


def _decode_spec(dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int], window: bool, cap: bool) -> Any:
    from flashinfer.jit.attention.modules import gen_batch_decode_module  # noqa: PLC0415 - makes a CUDA context

    return gen_batch_decode_module(*described(dtypes, dims), window, cap)


Described = tuple[torch.dtype, torch.dtype, torch.dtype, torch.dtype, int, int, int]


def described(dtypes: tuple[torch.dtype, torch.dtype], dims: tuple[int, int]) -> Described:
    """Return common arguments: the dtypes of q, of KV, of the output and of indices, head dims, positions."""
    query, kv = dtypes
    return (query, kv, query, torch.int32, *dims, NO_POSITIONS)


PLAIN = bucket(
    DType.BFLOAT16,
    64,
    heads=((1, 1), (4, 2), (3, 3), (7, 1), (8, 1), (16, 2)),
    page_sizes=(1, 5, 16, 64),
    layouts=(KvLayout.NHD, KvLayout.HND),
)
HALF = msgspec.structs.replace(PLAIN, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT16)
WIDE = msgspec.structs.replace(PLAIN, head_dim_qk=128, head_dim_vo=128, heads=((1, 1), (4, 1), (6, 2)))
WINDOWED = msgspec.structs.replace(WIDE, windows=(0, 7, 63, 200))
SMALL_WINDOWED = msgspec.structs.replace(PLAIN, windows=(0, 7, 63, 200), heads=((1, 1), (4, 2)), page_sizes=(1, 16))
EIGHT_BITS = msgspec.structs.replace(WINDOWED, dtype=DType.FLOAT16, kv_dtype=DType.FLOAT8_E4M3)
CAPPED = msgspec.structs.replace(WIDE, soft_caps=(30.0, 2.0))
# Both docstrings of run promise sinks for every backend.
WITH_SINKS = msgspec.structs.replace(PLAIN, heads=((1, 1), (4, 2)), page_sizes=(16,), sinks=(True,))
DECODE_BUCKETS = (
    # Groups of 1, 2, 3, 4, 6, 8 and 16 are compiled (DISPATCH_GQA_GROUP_SIZE, utils.cuh).
    msgspec.structs.replace(PLAIN, heads=((1, 1), (4, 2), (3, 1), (8, 1), (6, 1), (16, 1), (8, 2))),
    EIGHT_BITS,
    SMALL_WINDOWED,
)
_FA2_BUCKETS = (PLAIN, EIGHT_BITS, SMALL_WINDOWED)
_LATENT_PREFILL = msgspec.structs.replace(PLAIN, head_dim_qk=192, head_dim_vo=128, heads=((1, 1), (4, 4)))

_PREFILL_MODES = (Mode.EXTEND, Mode.CHUNKED_PREFILL)

CONTRACT = Contract(lse=LseBase.TWO)
"""LSE in base 2: docstrings of run (lse_base of prefill; decode's is merged with those of prefill by cascade)."""


def fa2_noise(dtype: DType) -> NoiseModel:
    """Return the noise of weights rounded before they are summed (m16k16_rowsum of s_frag_f16, attention/prefill.cuh).

    They are rounded to the dtype of the queries, even with an 8-bit cache, whose elements are widened to it.
    """
    rounded = NoiseModel.rounded_probabilities(dtype.torch_dtype)
    return msgspec.structs.replace(rounded, row_sum=ROUNDOFF[dtype.torch_dtype])


def fa3_noise(dtype: DType) -> NoiseModel:
    """Return the noise of weights summed in fp32, then rounded (OnlineSoftmax and convert_type, attention/hopper)."""
    return NoiseModel.rounded_probabilities(dtype.torch_dtype)


def decode_noise(dtype: DType) -> NoiseModel:
    """Return the noise of CUDA cores: fp32 throughout, with ex2.approx.ftz and tanh.approx (attention/decode.cuh)."""
    del dtype
    return msgspec.structs.replace(
        NoiseModel.fp32_arithmetic(), logits=2.0**-23, exponential=2.0**-21, tanh=2.0**-11, underflow=2.0**-126
    )


_FULL = (Mask.CAUSAL, Mask.FULL)
_CUSTOM = tuple(Mask)
_CUSTOM_PREFILL = tuple(mask for mask in Mask if mask is not Mask.TREE)
"""Custom masks are for fa2 alone: the kernels of fa3 refuse MaskMode.CUSTOM (docstring of variant_owns_mask)."""


def capability_of(
    modes: tuple[Mode, ...],
    graph_modes: tuple[Mode, ...],
    *buckets: Bucket,
    masks: tuple[Mask, ...] = (Mask.CAUSAL,),
    paged: bool = True,
) -> Capability:
    """Return the cases of a wrapper for geometries of these buckets."""
    return Capability(
        device=Device.CUDA,
        edges=UNSAID_EDGES,
        buckets=buckets,
        modes=modes,
        graph_modes=graph_modes,
        kv_scales=True,
        padding=True,
        query_views=tuple(QueryView),
        kv_views=tuple(KvView),
        pool_holes=paged,
        masks=masks,
        # LogitsMask of fa2's DefaultAttention has both (attention/variants.cuh); in the docstring of plan, window_left
        # does not depend on causal.
        windowed_masks=masks,
    )


def wrapper_backend(
    name: str,
    session: Callable[..., Session],
    form: WrapperKind,
    capability: Capability,
    theoretical: Callable[[DType], NoiseModel],
    arguments: tuple[ArgumentRule, ...],
    life: Callable[[Sequence[Bucket]], tuple[EarlierUse, ...]],
    modules_of: Callable[[Bucket], tuple[Module, ...]] | None = None,
) -> GpuBackend:
    """Make a backend of a session on a wrapper. FA3 is for Hopper alone."""
    earlier_uses = life(capability.buckets)
    return GpuBackend(
        name=name,
        archs=frozenset({Arch.HOPPER} if form.backend == "fa3" else Arch),
        capability=msgspec.structs.replace(capability, arguments=arguments, earlier_uses=earlier_uses),
        contract=CONTRACT,
        session=partial(session, form, buckets=capability.buckets),
        kernels=form.ops,
        modules_of=modules_of or partial(prefill_modules, backend=form.backend),
        theoretical=theoretical,
    )


def _fa3_ragged(name: str, layout: KvLayout) -> GpuBackend:
    """Make a backend for one layout: in HND most calls kill their process, which would hide the failures of NHD."""
    buckets = (msgspec.structs.replace(bucket, layouts=(layout,)) for bucket in (PLAIN, WINDOWED, _LATENT_PREFILL))
    capability = capability_of(_PREFILL_MODES, (), *buckets, masks=_FULL, paged=False)
    return wrapper_backend(name, RaggedSession, FA3_RAGGED, capability, fa3_noise, rules.RAGGED_PREFILL, lives.of_fa3)


WRAPPER_BACKENDS: Final = (
    wrapper_backend(
        "fa2_paged",
        PagedWrapperSession,
        FA2_PAGED,
        capability_of(Mode.of_kernels(), SPECULATIVE, *_FA2_BUCKETS, CAPPED, WITH_SINKS, masks=_CUSTOM),
        fa2_noise,
        rules.PAGED_PREFILL,
        lives.of_fa2_paged,
        fa2_paged_modules,
    ),
    wrapper_backend(
        "fa2_paged_packed_mask",
        PagedWrapperSession,
        FA2_PAGED_PACKED,
        capability_of(Mode.of_kernels(), SPECULATIVE, *_FA2_BUCKETS, masks=_CUSTOM),
        fa2_noise,
        rules.PAGED_PREFILL,
        lives.of_fa2_paged,
        fa2_paged_modules,
    ),
    wrapper_backend(
        "fa3_paged",
        PagedWrapperSession,
        FA3_PAGED,
        capability_of(Mode.of_kernels(), SPECULATIVE, PLAIN, WINDOWED, WITH_SINKS, masks=_FULL),
        fa3_noise,
        rules.FA3_PAGED_PREFILL,
        lives.of_fa3_paged,
    ),
    wrapper_backend(
        "fa2_ragged",
        RaggedSession,
        FA2_RAGGED,
        capability_of(_PREFILL_MODES, (), *_FA2_BUCKETS, CAPPED, _LATENT_PREFILL, masks=_CUSTOM_PREFILL, paged=False),
        fa2_noise,
        rules.FA2_RAGGED_PREFILL,
        lives.of_fa2,
        masked_modules,
    ),
    wrapper_backend(
        "fa2_ragged_packed_mask",
        RaggedSession,
        FA2_RAGGED_PACKED,
        capability_of(_PREFILL_MODES, (), *_FA2_BUCKETS, masks=_CUSTOM_PREFILL, paged=False),
        fa2_noise,
        rules.FA2_RAGGED_PREFILL,
        lives.of_fa2,
        masked_modules,
    ),
    _fa3_ragged("fa3_ragged", KvLayout.NHD),
    _fa3_ragged("fa3_ragged_hnd", KvLayout.HND),
    wrapper_backend(
        "batch_decode",
        PagedWrapperSession,
        DECODE,
        capability_of(
            (Mode.DECODE,),
            (Mode.DECODE,),
            *DECODE_BUCKETS,
            WITH_SINKS,
        ),
        decode_noise,
        rules.BATCH_DECODE,
        lives.of_decode,
        decode_modules,
    ),
)
