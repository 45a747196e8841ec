"""The backends of all libraries."""

from attnfuzz.kernels.libraries.library_backend import LibraryBackend
from attnfuzz.kernels.libraries.onnxruntime import ONNXRUNTIME_BACKENDS
from attnfuzz.kernels.libraries.openvino import OPENVINO_BACKENDS

LIBRARY_BACKENDS: tuple[LibraryBackend, ...] = (*ONNXRUNTIME_BACKENDS, *OPENVINO_BACKENDS)
