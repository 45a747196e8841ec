"""The attention backends of vLLM that this project runs: their modules and classes, and the GPU that is simulated."""

from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from attnfuzz.kernels.libraries.geometries import few_geometries
from attnfuzz.kernels.libraries.interpreted import DTYPES
from attnfuzz.kernels.libraries.vllm_cpu import CAPABILITY as CPU_KERNELS
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mode, QueryView
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout, Latent
from attnfuzz.reference.serving import Interleave

BLACKWELL: Final = (10, 0)
"""A compute capability on which vLLM plans for trtllm-gen's kernels."""

HOPPER: Final = (9, 0)
AMPERE: Final = (8, 0)

_OF_TARGETS: Final = (Mode.DECODE, Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND, Mode.EXTEND, Mode.CHUNKED_PREFILL)
"""The modes of a server without a draft model."""

FLASHINFER: Final = Capability(
    modes=(*_OF_TARGETS, Mode.DRAFT_DECODE),
    graph_modes=(Mode.DECODE, Mode.TARGET_VERIFY),
    dtypes=(DType.BFLOAT16, DType.FLOAT16),
    fp8_kv=True,
    kv_scales=(DType.FLOAT8_E4M3,),
    query_scales=True,
    kept_queries=True,
    page_sizes=(16, 32, 64),
    layouts=(KvLayout.HND,),
    windows=True,
    sinks=True,
    padding=True,
    empty_kv=False,
    kv_shorter_than_q=False,
    query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
    table_gaps=False,
)
"""The capability of a server of any release: no request has fewer keys than queries, and pools are HND.

With n-gram speculation, requests verify different numbers of drafts (`draft_extend`).
"""

WRAPPERS: Final = structs.replace(FLASHINFER, layouts=(KvLayout.NHD, KvLayout.HND), head_dims=(64, 128, 256))
"""The capability on Hopper and Ampere: pools of any layout, and the head dims that vLLM allows (flashinfer.py:700)."""

TRITON: Final = structs.replace(
    FLASHINFER,
    dtypes=DTYPES,
    fp8_kv=False,
    kv_scales=False,
    kept_queries=False,
    layouts=(KvLayout.NHD, KvLayout.HND),
    soft_cap=True,
    max_head_dim=128,
    patience=4.0,
)
"""The capability of the Triton backend: pools of any layout (0.33.0: v1/attention/backend.py:372). Kernels run in the
interpreter."""


LATENT: Final = structs.replace(
    FLASHINFER,
    dtypes=(DType.BFLOAT16,),
    fp8_kv=False,
    kv_scales=False,
    query_scales=False,
    kept_queries=False,
    latent=True,
    max_head_dim=576,
    page_sizes=(32, 64),
    windows=False,
    sinks=False,
    query_views=(QueryView.CONTIGUOUS,),
)
"""The capability of FLASHINFER_MLA (v1/attention/backends/mla/flashinfer_mla.py:191), without FP8 caches.

FlashInfer's decode returns bfloat16 for queries of any dtype.
"""

TRITON_FP8: Final = structs.replace(
    TRITON,
    buckets=tuple(
        structs.replace(each, kv_dtype=DType.FLOAT8_E4M3, layouts=(KvLayout.NHD, KvLayout.HND))
        for each in few_geometries(
            (DType.FLOAT16,), head_dims=(32, 64), page_sizes=(16, 32, 64), windows=True, sinks=True, soft_caps=True
        )
    ),
    fp8_kv=True,
    kv_scales=(DType.FLOAT8_E4M3,),
)
"""The Triton backend on FP8 caches, whose kernels are less accurate."""

FLASH_ATTN: Final = structs.replace(
    FLASHINFER,
    fp8_kv=False,
    kv_scales=False,
    kept_queries=False,
    layouts=(KvLayout.NHD, KvLayout.HND),
    head_dims=(64, 80, 96, 128, 256),
)
"""The capability of FlashAttention 3 on 16-bit pools (0.33.0: v1/attention/backends/flash_attn.py:451)."""

_OF_RANKS: Final = tuple(
    structs.replace(each, layouts=(KvLayout.NHD, KvLayout.HND), modes=_OF_TARGETS)
    for each in few_geometries(
        (DType.BFLOAT16, DType.FLOAT16),
        heads=((2, 1), (4, 1), (8, 1), (6, 1)),
        head_dims=(64, 128, 256),
        page_sizes=(16, 32, 64),
        sinks=True,
    )
)

_DRAFTS_OF_RANKS: Final = structs.replace(_OF_RANKS[0], modes=(), sinks=(False,))

_MOST_PROGRAMS: Final = 256
"""Maximum number of Triton programs in a merge: each rank runs one for each row and head that a rank sends to it.

Triton's interpreter takes milliseconds for each. 16 drafts on 8 query heads and two ranks reach the maximum.
"""

SHARDED: Final = structs.replace(
    FLASH_ATTN,
    shared_keys=(2, 4),
    most_programs=_MOST_PROGRAMS,
    patience=4.0,
    buckets=(*_OF_RANKS, structs.replace(_OF_RANKS[0], windows=(3, 16, 127), sinks=(False,)), _DRAFTS_OF_RANKS),
)
"""The capability of FlashAttention 3 on ranks that share keys: all have the same KV head (config/model.py:1581).

Windows (docs/findings/vllm-dcp-windows.md) and draft decodes (docs/guides/vllm.md) are wrong there, so few cases have
them. The merge kernels take head dims that are powers of two (v1/attention/ops/dcp.py:161).
"""

SHARDED_BLACKWELL: Final = structs.replace(
    SHARDED,
    graph_modes=(Mode.DECODE,),
    sinks=False,
    windows=False,
    buckets=tuple(
        structs.replace(each, layouts=(KvLayout.HND,), sinks=(False,)) for each in (*_OF_RANKS, _DRAFTS_OF_RANKS)
    ),
)
"""The capability of the FlashInfer backend on such ranks, which treats verifies as prefills (flashinfer.py:1067).

It rejects sinks in prefills (flashinfer.py:1626), and windows next to layers without one (flashinfer.py:1633).
"""

SHARDED_WRAPPERS: Final = structs.replace(
    SHARDED_BLACKWELL,
    buckets=tuple(structs.replace(each, sinks=(False,)) for each in (*_OF_RANKS, _DRAFTS_OF_RANKS)),
)
"""The capability of the FlashInfer backend on such ranks on Hopper."""

_OF_LATENT_RANKS: Final = tuple(
    Bucket(
        dtype=DType.BFLOAT16,
        kv_dtype=DType.BFLOAT16,
        head_dim_qk=latent.rank + latent.rope,
        head_dim_vo=latent.rank,
        latent=latent,
        heads=((2, 1), (4, 1), (8, 1), (6, 1)),
        page_sizes=LATENT.page_sizes,
        layouts=LATENT.layouts,
        modes=_OF_TARGETS,
    )
    for latent in (
        Latent(rank=32, rope=16, nope=24, vo=16),
        Latent(rank=64, rope=8, nope=16, vo=64),
        Latent(rank=512, rope=64, nope=128, vo=128),
    )
)

SHARDED_LATENT: Final = structs.replace(
    LATENT,
    shared_keys=SHARDED.shared_keys,
    interleaves=(Interleave.TOKEN,),
    most_programs=_MOST_PROGRAMS,
    patience=SHARDED.patience,
    buckets=(*_OF_LATENT_RANKS, structs.replace(_OF_LATENT_RANKS[0], modes=())),
)
"""The capability of FLASHINFER_MLA on such ranks (0.33.0: v1/attention/backends/mla/flashinfer_mla.py:140)."""

WITHOUT_GPU: Final = structs.replace(
    FLASHINFER,
    modes=_OF_TARGETS,
    graph_modes=(),
    dtypes=(DType.FLOAT16, DType.FLOAT32),
    fp8_kv=False,
    kv_scales=False,
    kept_queries=False,
    head_dims=CPU_KERNELS.head_dims,
    page_sizes=CPU_KERNELS.page_sizes,
    soft_cap=True,
    padding=False,
)
"""The capability of a server without a GPU, which captures and pads nothing (0.32.0: platforms/cpu.py:353).

bfloat16 is excluded: on a CPU without bfloat16 instructions, the kernels truncate instead of rounding
(docs/findings/vllm-cpu-bf16-truncation.md).
"""

WITHOUT_GPU_BF16: Final = structs.replace(WITHOUT_GPU, dtypes=(DType.BFLOAT16,))


@dataclass(frozen=True)
class BackendKind:
    """A kind of backend.

    Attributes:
        module: Its module in vLLM.
        classes: The prefix of its class names.
        gpu: The compute capability of the simulated GPU; None for a server without a GPU.
        capability: The cases that it supports.
        interpreted: Whether its kernels are Triton's, and run in the interpreter.
        calibrated: Our own backend on the same kernels, whose noise model applies.
        packed_prefills: Whether prefills of latents run on trtllm-gen's kernel for packed keys, not on FlashAttention.
        impl: The suffix of the name of its implementation class.
        sharded: Whether ranks share the keys of each request (decode context parallelism).

    """

    module: str
    classes: str
    gpu: tuple[int, int] | None
    capability: Capability
    interpreted: bool = False
    calibrated: str = "trtllm_mha"
    packed_prefills: bool = False
    sharded: bool = False
    impl: str = "Impl"

    @property
    def class_names(self) -> dict[str, str]:
        """The names of its classes, by role."""
        ends = {"Backend": "Backend", "Impl": self.impl, "MetadataBuilder": "MetadataBuilder"}
        return {part: f"{self.classes}{end}" for part, end in ends.items()}

    @property
    def on_cpu(self) -> bool:
        """Whether the server has no GPU."""
        return self.gpu is None


_BACKENDS: Final = "vllm.v1.attention.backends"
_MLA: Final = f"{_BACKENDS}.mla.flashinfer_mla"

_BELOW_STEPS: Final = {
    "flashinfer": BackendKind(f"{_BACKENDS}.flashinfer", "FlashInfer", BLACKWELL, FLASHINFER),
    "flashinfer_sm90": BackendKind(f"{_BACKENDS}.flashinfer", "FlashInfer", HOPPER, WRAPPERS),
    "flashinfer_sm80": BackendKind(
        f"{_BACKENDS}.flashinfer", "FlashInfer", AMPERE, structs.replace(WRAPPERS, sinks=False)
    ),
    "flashinfer_mla": BackendKind(_MLA, "FlashInferMLA", BLACKWELL, LATENT, calibrated="trtllm_mla"),
    "flashinfer_mla_packed": BackendKind(
        _MLA, "FlashInferMLA", BLACKWELL, LATENT, calibrated="trtllm_mla", packed_prefills=True
    ),
    "flashinfer_mla_dcp": BackendKind(
        _MLA, "FlashInferMLA", BLACKWELL, SHARDED_LATENT, calibrated="trtllm_mla", sharded=True
    ),
    "flash_attn": BackendKind(f"{_BACKENDS}.flash_attn", "FlashAttention", HOPPER, FLASH_ATTN),
    "flash_attn_dcp": BackendKind(f"{_BACKENDS}.flash_attn", "FlashAttention", HOPPER, SHARDED, sharded=True),
    "flashinfer_dcp": BackendKind(f"{_BACKENDS}.flashinfer", "FlashInfer", BLACKWELL, SHARDED_BLACKWELL, sharded=True),
    "flashinfer_dcp_sm90": BackendKind(f"{_BACKENDS}.flashinfer", "FlashInfer", HOPPER, SHARDED_WRAPPERS, sharded=True),
    "triton": BackendKind(f"{_BACKENDS}.triton_attn", "TritonAttention", HOPPER, TRITON, interpreted=True),
    "triton_fp8": BackendKind(f"{_BACKENDS}.triton_attn", "TritonAttention", HOPPER, TRITON_FP8, interpreted=True),
    "cpu": BackendKind(f"{_BACKENDS}.cpu_attn", "CPUAttention", None, WITHOUT_GPU, impl="BackendImpl"),
    "cpu_bf16": BackendKind(f"{_BACKENDS}.cpu_attn", "CPUAttention", None, WITHOUT_GPU_BF16, impl="BackendImpl"),
}
"""Backends whose forwards are the steps of a case, without vLLM's scheduler."""


def _below_scheduler(kind: BackendKind) -> BackendKind:
    """Return the same kind below vLLM's own scheduler and block pool."""
    return replace(kind, capability=structs.replace(kind.capability, schedules=True))


KINDS: Final = {
    **_BELOW_STEPS,
    "engine": _below_scheduler(_BELOW_STEPS["flashinfer"]),
    "engine_sm90": _below_scheduler(_BELOW_STEPS["flashinfer_sm90"]),
    "engine_sm80": _below_scheduler(_BELOW_STEPS["flashinfer_sm80"]),
    "engine_flash_attn": _below_scheduler(_BELOW_STEPS["flash_attn"]),
    "engine_cpu": _below_scheduler(
        replace(_BELOW_STEPS["cpu"], capability=structs.replace(WITHOUT_GPU, asynchronous=False))
    ),
    "engine_mla": _below_scheduler(_BELOW_STEPS["flashinfer_mla"]),
    "engine_triton": _below_scheduler(_BELOW_STEPS["triton"]),
}
"""All kinds, named after --attention-backend in lower case, with a suffix for a GPU other than Blackwell.

`flashinfer_mla_packed` has the other prefill backend. `cpu` and `cpu_bf16` run the compiled kernels of a server without
a GPU. Kinds below vLLM's own scheduler are called `engine`, with the names of backend and GPU as suffixes.
"""
