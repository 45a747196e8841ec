"""The backends of all libraries."""

from attnfuzz.kernels.libraries.library_backend import LibraryBackend
from attnfuzz.kernels.libraries.vllm_cpu import VLLM_CPU_BACKENDS

LIBRARY_BACKENDS: tuple[LibraryBackend, ...] = VLLM_CPU_BACKENDS
