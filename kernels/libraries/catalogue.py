"""The backends of all libraries."""

from attnfuzz.kernels.libraries.installed import LibraryBackend, LibrarySparse, LibraryStates, LibraryWriter
from attnfuzz.kernels.libraries.jax import JAX_BACKENDS
from attnfuzz.kernels.libraries.onnxruntime import ONNXRUNTIME_BACKENDS
from attnfuzz.kernels.libraries.openvino import OPENVINO_BACKENDS
from attnfuzz.kernels.libraries.torch_attention import TORCH_BACKENDS
from attnfuzz.kernels.libraries.torch_writes import TORCH_WRITERS
from attnfuzz.kernels.libraries.transformers import TRANSFORMERS_BACKENDS
from attnfuzz.kernels.libraries.transformers_states import TRANSFORMERS_STATES
from attnfuzz.kernels.libraries.triton_sglang import SGLANG_BACKENDS
from attnfuzz.kernels.libraries.triton_sglang_writes import SGLANG_WRITERS
from attnfuzz.kernels.libraries.triton_sparse import TRITON_SPARSE
from attnfuzz.kernels.libraries.triton_states import TRITON_STATES
from attnfuzz.kernels.libraries.triton_vllm import VLLM_BACKENDS
from attnfuzz.kernels.libraries.triton_vllm_writes import VLLM_WRITERS
from attnfuzz.kernels.libraries.vllm_cpu import VLLM_CPU_BACKENDS
from attnfuzz.kernels.libraries.vllm_cpu_sparse import VLLM_CPU_SPARSE
from attnfuzz.kernels.libraries.vllm_cpu_states import VLLM_CPU_STATES
from attnfuzz.kernels.libraries.vllm_cpu_writes import VLLM_CPU_WRITERS

LIBRARY_BACKENDS: tuple[LibraryBackend | LibraryWriter | LibraryStates | LibrarySparse, ...] = (
    *ONNXRUNTIME_BACKENDS,
    *OPENVINO_BACKENDS,
    *TORCH_BACKENDS,
    *TRANSFORMERS_BACKENDS,
    *VLLM_CPU_BACKENDS,
    *VLLM_CPU_STATES,
    *TRANSFORMERS_STATES,
    *JAX_BACKENDS,
    *VLLM_BACKENDS,
    *SGLANG_BACKENDS,
    *TORCH_WRITERS,
    *VLLM_CPU_WRITERS,
    *VLLM_WRITERS,
    *SGLANG_WRITERS,
    *VLLM_CPU_SPARSE,
    *TRITON_STATES,
    *TRITON_SPARSE,
)


def backends() -> tuple[LibraryBackend | LibraryWriter | LibraryStates | LibrarySparse, ...]:
    """Return all of them."""
    return LIBRARY_BACKENDS
