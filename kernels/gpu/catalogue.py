"""Every backend on a GPU."""

from typing import Final

from attnfuzz.kernels.gpu.blackwell import BLACKWELL_BACKENDS
from attnfuzz.kernels.gpu.direct.cache_writes import FLASHINFER_WRITERS
from attnfuzz.kernels.gpu.direct.cudnn import CUDNN_DECODE, CUDNN_PREFILL
from attnfuzz.kernels.gpu.direct.fmha_v2 import FMHA_V2, FMHA_V2_AS_SERVED, FMHA_V2_LSE, FMHA_V2_NHD, FMHA_V2_PACKED
from attnfuzz.kernels.gpu.direct.mla import MLA_FA2, MLA_FA3
from attnfuzz.kernels.gpu.direct.mla_swa import MLA_SWA
from attnfuzz.kernels.gpu.direct.rope import FLASHINFER_ROPE
from attnfuzz.kernels.gpu.direct.single import SINGLE_BACKENDS
from attnfuzz.kernels.gpu.direct.states import CASCADE_MERGE, CUDA_FIXUP
from attnfuzz.kernels.gpu.direct.torch_attention import FLEX_ATTENTION, SDPA_CUDNN, SDPA_EFFICIENT, SDPA_FLASH
from attnfuzz.kernels.gpu.direct.varlen import VARLEN_ATTN, VARLEN_ATTN_LSE, VARLEN_ATTN_OUT
from attnfuzz.kernels.gpu.direct.xqa import XQA, XQA_AS_SERVED, XQA_FP8
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.hopper.backends import HOPPER_BACKENDS
from attnfuzz.kernels.gpu.quick import limited
from attnfuzz.kernels.gpu.wrappers.auto import AUTO_BACKENDS
from attnfuzz.kernels.gpu.wrappers.backends import WRAPPER_BACKENDS
from attnfuzz.kernels.gpu.wrappers.cascade import CASCADE_BACKENDS
from attnfuzz.kernels.gpu.wrappers.decode_variants import DECODE_VARIANTS
from attnfuzz.kernels.gpu.wrappers.holistic import HOLISTIC
from attnfuzz.kernels.gpu.wrappers.pod import POD_BACKENDS
from attnfuzz.kernels.gpu.wrappers.sinks import SECOND_SINK_BACKENDS, SINK_BACKENDS, SINK_DECODE_BACKENDS
from attnfuzz.kernels.gpu.wrappers.sparse import SPARSE_BACKENDS
from attnfuzz.kernels.gpu.wrappers.token_head_scales import TOKEN_HEAD

DIRECT_BACKENDS: Final[tuple[GpuBackend, ...]] = (
    XQA,
    XQA_AS_SERVED,
    XQA_FP8,
    FMHA_V2,
    FMHA_V2_AS_SERVED,
    FMHA_V2_NHD,
    FMHA_V2_PACKED,
    FMHA_V2_LSE,
    MLA_FA2,
    MLA_FA3,
    MLA_SWA,
    CASCADE_MERGE,
    CUDNN_DECODE,
    CUDNN_PREFILL,
    SDPA_FLASH,
    SDPA_EFFICIENT,
    SDPA_CUDNN,
    FLEX_ATTENTION,
    VARLEN_ATTN,
    VARLEN_ATTN_LSE,
    VARLEN_ATTN_OUT,
)


GPU_BACKENDS: tuple[GpuBackend, ...] = (
    *HOPPER_BACKENDS,
    *BLACKWELL_BACKENDS,
    CUDA_FIXUP,
    *DIRECT_BACKENDS,
    *WRAPPER_BACKENDS,
    *AUTO_BACKENDS,
    TOKEN_HEAD,
    *DECODE_VARIANTS,
    *SINK_BACKENDS,
    *SINK_DECODE_BACKENDS,
    *SECOND_SINK_BACKENDS,
    *SINGLE_BACKENDS,
    HOLISTIC,
    *POD_BACKENDS,
    *CASCADE_BACKENDS,
    *SPARSE_BACKENDS,
    *FLASHINFER_WRITERS,
    *FLASHINFER_ROPE,
)


def backends() -> tuple[GpuBackend, ...]:
    """Return all of them, limited to compiled modules if the environment asks for it."""
    return limited(GPU_BACKENDS)
