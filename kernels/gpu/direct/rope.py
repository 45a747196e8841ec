"""FlashInfer's rotary embedding on a GPU: alone, with a conversion to fp8, and with an append to the paged cache.

Cosines and sines come from a table of fp32, or are computed (include/flashinfer/pos_enc.cuh). A computed frequency is
__powf(1 / theta, 2 i / dim), that is exp2f(y * __log2f(x)): the logarithm is off by 2 ulp (CUDA C++ Programming Guide,
Intrinsic Functions), 2^-18 for 1 / theta of 10^-4 to 10^-6, the product by another 2^-20, and theta's reciprocal by
2^-24, which makes 2^-17 of the angle at most. __sincosf is off by 2^-21.41 up to an angle of pi; beyond, the reduction
of the angle adds an error relative to it, which the former covers. Numbers below 2^-126 may be flushed to zero. The
fused kernels multiply by the reciprocal of a scale, of which there is one for keys and values.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from msgspec import structs

from attnfuzz.kernels.cache_writes.rope_session import RopeSession, RotationSession
from attnfuzz.kernels.cache_writes.rotation import FLUSHED, Rotation
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.direct.cache_writes import COPIES, COPIES_IN_FP8, COPIES_OF_LATENTS, gpu_writer
from attnfuzz.kernels.gpu.flashinfer_op import flashinfer_op
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.planning.latent_parts import latent_parts
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import PaddedSlot, QueryView
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.rope import RopeScaling, RotaryShare

_MODULE: Final = "flashinfer.rope"
_BATCH: Final = ("kv_indices", "kv_indptr", "batch_indices", "positions")

TABLE: Final = Rotation(underflow=FLUSHED)
COMPUTED: Final = Rotation(angle=2.0**-17, cos_sin=2.0**-21, underflow=FLUSHED)
# The share that a frequency keeps follows from it: its relative error grows by at most 10 / 3.
COMPUTED_FOR_LLAMA31: Final = Rotation(angle=2.0**-15, cos_sin=2.0**-21, underflow=FLUSHED)


def _op(name: str, *writes: str) -> Op:
    return flashinfer_op(_MODULE, name, frozenset(writes))


# Beside FlashInfer's names, those of the session's rows.
_PLACE: Final = ("query", "key")
_OUT: Final = ("query_out", "key_out", "q_rope_out", "k_rope_out", "q_nope_out", "k_nope_out")
ROPE: Final = _op("apply_rope_pos_ids_inplace", "q", "k", *_PLACE)
ROPE_LLAMA31: Final = _op("apply_llama31_rope_pos_ids_inplace", "q", "k", *_PLACE)
ROPE_BY_TABLE: Final = _op("apply_rope_with_cos_sin_cache_inplace", *_PLACE)
QUANTISE: Final = _op("rope_quantize_fp8", *_OUT)
QUANTISE_MLA: Final = _op("mla_rope_quantize_fp8", *_OUT)
APPEND: Final = _op(
    "rope_quantize_fp8_append_paged_kv_cache", "paged_kv_cache", "query_out", "q_rope_out", "q_nope_out"
)


def _rotate(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    rope_positions: torch.Tensor,
    rotary_dim: int,
    is_neox: bool,
    rope_theta: float,
) -> Mapping[str, Any]:
    """Arrange the arguments of ROPE."""
    how = {"rotary_dim": rotary_dim, "interleave": not is_neox, "rope_theta": rope_theta}
    return {"q": query, "k": key, "pos_ids": rope_positions.int(), **how}


def _rotate_for_llama31(**described: Any) -> Mapping[str, Any]:
    """Arrange the arguments of ROPE_LLAMA31: those of ROPE, and the model's scaling, which is the default as well."""
    scaling = {"rope_scale": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "old_context_len": 8192}
    return {**_rotate(**{name: described[name] for name in _ROTATED}), **scaling}


_ROTATED: Final = ("query", "key", "rope_positions", "rotary_dim", "is_neox", "rope_theta")


def _rotate_by_table(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    rope_positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
) -> Mapping[str, Any]:
    """Arrange the arguments of ROPE_BY_TABLE."""
    return {
        "positions": rope_positions.int(),
        "query": query.flatten(1),
        "key": key.flatten(1),
        "head_size": query.shape[2],
        "cos_sin_cache": cos_sin_cache,
        "is_neox": is_neox,
    }


def _halves(rows: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Split rows into the rotated part, and the rest if there is one."""
    return rows[..., :dim], rows[..., dim:] if rows.shape[-1] > dim else None


def _quantise(
    *,
    query: torch.Tensor,
    query_out: torch.Tensor,
    key: torch.Tensor,
    key_out: torch.Tensor,
    rope_positions: torch.Tensor,
    rotary_dim: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    k_scale: float,
) -> Mapping[str, Any]:
    """Arrange the arguments of QUANTISE."""
    names = ("q", query), ("k", key)
    parts = {f"{name}_{part}": each for name, rows in names for part, each in _named(rows, rotary_dim)}
    outs = ("q", query_out), ("k", key_out)
    results = {f"{name}_{part}_out": each for name, rows in outs for part, each in _named(rows, rotary_dim)}
    return parts | results | _table(cos_sin_cache, rope_positions, is_neox=is_neox) | _reciprocal(k_scale)


def _named(rows: torch.Tensor, dim: int) -> tuple[tuple[str, torch.Tensor | None], ...]:
    rope, rest = _halves(rows, dim)
    return ("rope", rope), ("nope", rest)


def _table(cos_sin_cache: torch.Tensor, rope_positions: torch.Tensor, *, is_neox: bool) -> dict[str, Any]:
    return {"cos_sin_cache": cos_sin_cache, "pos_ids": rope_positions.int(), "is_neox": is_neox}


def _reciprocal(scale: float) -> dict[str, Any]:
    return {"quantize_dtype": torch.float8_e4m3fn, "quant_scale_q": 1.0, "quant_scale_kv": 1 / scale}


def _quantise_mla(
    *,
    query: torch.Tensor,
    query_out: torch.Tensor,
    key: torch.Tensor,
    key_out: torch.Tensor,
    rope_positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    k_scale: float,
) -> Mapping[str, Any]:
    """Arrange the arguments of QUANTISE_MLA."""
    parts = {}
    for name, rows, suffix in (
        ("q", query, ""),
        ("k", key[:, 0], ""),
        ("q", query_out, "_out"),
        ("k", key_out[:, 0], "_out"),
    ):
        parts[f"{name}_nope{suffix}"], parts[f"{name}_rope{suffix}"] = latent_parts(rows)
    return parts | _table(cos_sin_cache, rope_positions, is_neox=is_neox) | _reciprocal(k_scale)


def _append(
    *,
    query: torch.Tensor,
    query_out: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rope_positions: torch.Tensor,
    rotary_dim: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    kv_layout: str,
    **others: Any,
) -> Mapping[str, Any]:
    """Arrange the arguments of APPEND for keys and values."""
    (q_rope, q_nope), (k_rope, k_nope) = _halves(query, rotary_dim), _halves(key, rotary_dim)
    q_rope_out, q_nope_out = _halves(query_out, rotary_dim)
    return {
        "q_rope": q_rope,
        "q_nope": q_nope,
        "k_rope": k_rope,
        "k_nope": k_nope,
        "v": value,
        "q_rope_out": q_rope_out,
        "q_nope_out": q_nope_out,
        "paged_kv_cache": (k_cache, v_cache),
        **_table(cos_sin_cache, rope_positions, is_neox=is_neox),
        **_reciprocal(1.0),
        **{name: others[name] for name in _BATCH},
        "page_size": k_cache.shape[1 if kv_layout == "NHD" else 2],
        "kv_layout": kv_layout,
    }


def _append_mla(
    *,
    query: torch.Tensor,
    query_out: torch.Tensor,
    key: torch.Tensor,
    kv_cache: torch.Tensor,
    rope_positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    k_scale: float,
    **others: Any,
) -> Mapping[str, Any]:
    """Arrange the arguments of APPEND for latents: both parts of the cache are slices of the same rows."""
    q_nope, q_rope = latent_parts(query)
    k_nope, k_rope = latent_parts(key[:, 0])
    q_nope_out, q_rope_out = latent_parts(query_out)
    cache = kv_cache.flatten(1, 2)
    return {
        "q_rope": q_rope,
        "q_nope": q_nope,
        "k_rope": k_rope,
        "k_nope": k_nope,
        "v": None,
        "q_rope_out": q_rope_out,
        "q_nope_out": q_nope_out,
        "paged_kv_cache": latent_parts(cache),
        **_table(cos_sin_cache, rope_positions, is_neox=is_neox),
        **_reciprocal(k_scale),
        **{name: others[name] for name in _BATCH},
        "page_size": cache.shape[1],
    }


def _spec() -> Any:
    from flashinfer.jit import rope  # noqa: PLC0415 - it creates a CUDA context

    return rope.gen_rope_module()


_ROPE_MODULE: Final = Module("rotary embedding", _spec)
# A lane has 16 elements, all of them in one half of a head: a quarter of a small head is less. Tensors arranged anew in
# each launch are in no graph.
_ROTARY: Final = structs.replace(
    COPIES,
    graph_modes=(),
    value_strides=False,
    rotary=(RotaryShare.WHOLE, RotaryShare.HALF),
    rope_scalings=tuple(RopeScaling),
)
_QUANTISED: Final = structs.replace(_ROTARY, buckets=COPIES_IN_FP8.buckets)


def _in_fp8(bucket: Bucket) -> Bucket:
    return structs.replace(bucket, kv_dtype=DType.FLOAT8_E4M3)


_LATENTS: Final = structs.replace(
    _ROTARY, buckets=tuple(map(_in_fp8, COPIES_OF_LATENTS.buckets)), kv_scales=True, rotary=(RotaryShare.WHOLE,)
)


def _rope_backend(
    name: str,
    op: Op,
    arrange: Callable[..., Mapping[str, Any]],
    capability: Capability,
    kind: type[RopeSession],
    rotation: Rotation = TABLE,
) -> GpuBackend:
    return gpu_writer(name, op, arrange, capability, module=_ROPE_MODULE, kind=kind, rotation=rotation)


_SKIPS: Final = {"padded_slots": (PaddedSlot.NOWHERE,)}
FLASHINFER_ROPE: Final = (
    _rope_backend(
        "flashinfer:rope",
        ROPE,
        _rotate,
        structs.replace(_ROTARY, rope_scalings=(RopeScaling.NONE,)),
        RotationSession,
        COMPUTED,
    ),
    _rope_backend(
        "flashinfer:rope_llama31",
        ROPE_LLAMA31,
        _rotate_for_llama31,
        structs.replace(_ROTARY, rope_scalings=(RopeScaling.LLAMA31,)),
        RotationSession,
        COMPUTED_FOR_LLAMA31,
    ),
    _rope_backend(
        "flashinfer:rope_by_table",
        ROPE_BY_TABLE,
        _rotate_by_table,
        # The heads of a token follow each other.
        structs.replace(_ROTARY, query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV)),
        RotationSession,
    ),
    _rope_backend(
        "flashinfer:rope_quantise",
        QUANTISE,
        _quantise,
        structs.replace(_QUANTISED, kv_scales=True),
        RotationSession,
    ),
    _rope_backend("flashinfer:rope_quantise_mla", QUANTISE_MLA, _quantise_mla, _LATENTS, RotationSession),
    _rope_backend(
        "flashinfer:rope_append",
        APPEND,
        _append,
        # csrc/rope.cu passes the strides of new values, v_in_stride.
        structs.replace(_QUANTISED, value_strides=True, **_SKIPS),
        RopeSession,
    ),
    _rope_backend("flashinfer:rope_append_mla", APPEND, _append_mla, structs.replace(_LATENTS, **_SKIPS), RopeSession),
)
