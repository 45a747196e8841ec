"""The backends of all libraries."""

from attnfuzz.kernels.libraries.library_backend import LibraryBackend
from attnfuzz.kernels.libraries.torch_attention import TORCH_BACKENDS
from attnfuzz.kernels.libraries.transformers import TRANSFORMERS_BACKENDS
from attnfuzz.kernels.libraries.vllm_cpu import VLLM_CPU_BACKENDS

LIBRARY_BACKENDS: tuple[LibraryBackend, ...] = (*TORCH_BACKENDS, *TRANSFORMERS_BACKENDS, *VLLM_CPU_BACKENDS)
