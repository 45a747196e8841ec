"""The backends of all libraries."""

from attnfuzz.kernels.libraries.jax import JAX_BACKENDS
from attnfuzz.kernels.libraries.library_backend import LibraryBackend
from attnfuzz.kernels.libraries.onnxruntime import ONNXRUNTIME_BACKENDS
from attnfuzz.kernels.libraries.openvino import OPENVINO_BACKENDS
from attnfuzz.kernels.libraries.torch_attention import TORCH_BACKENDS
from attnfuzz.kernels.libraries.transformers import TRANSFORMERS_BACKENDS
from attnfuzz.kernels.libraries.triton_sglang import SGLANG_BACKENDS
from attnfuzz.kernels.libraries.triton_vllm import VLLM_BACKENDS
from attnfuzz.kernels.libraries.vllm_cpu import VLLM_CPU_BACKENDS

LIBRARY_BACKENDS: tuple[LibraryBackend, ...] = (
    *ONNXRUNTIME_BACKENDS,
    *OPENVINO_BACKENDS,
    *TORCH_BACKENDS,
    *TRANSFORMERS_BACKENDS,
    *VLLM_CPU_BACKENDS,
    *JAX_BACKENDS,
    *VLLM_BACKENDS,
    *SGLANG_BACKENDS,
)
