"""The backends of all libraries."""

from attnfuzz.kernels.libraries.jax import JAX_BACKENDS
from attnfuzz.kernels.libraries.library_backend import LibraryBackend
from attnfuzz.kernels.libraries.triton_sglang import SGLANG_BACKENDS
from attnfuzz.kernels.libraries.triton_vllm import VLLM_BACKENDS

LIBRARY_BACKENDS: tuple[LibraryBackend, ...] = (*JAX_BACKENDS, *VLLM_BACKENDS, *SGLANG_BACKENDS)
