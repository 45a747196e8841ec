"""The backends of all libraries."""

from attnfuzz.kernels.libraries.library_backend import LibraryBackend

LIBRARY_BACKENDS: tuple[LibraryBackend, ...] = ()
