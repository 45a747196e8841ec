"""Where a measurement of a backend's errors applies: an architecture, and versions of the packages with its kernels."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from attnfuzz.kernels.cuda import visible
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.reference.calibration import architecture
from attnfuzz.reference.device import Device


@runtime_checkable
class OfPackages(Protocol):
    """A backend whose kernel is that of installed packages."""

    def versions(self) -> Mapping[str, str]:
        """Return versions by package."""
        ...


def architecture_of(backend: Backend) -> str:
    """Return the architecture to which a measurement of this backend applies: this CPU's, or the GPU's."""
    return visible.architecture() if backend.capability.device is Device.CUDA else architecture()


def versions_of(backend: Backend) -> Mapping[str, str]:
    """Return the versions of the packages that have its kernel, none for this project's own."""
    return backend.versions() if isinstance(backend, OfPackages) else {}
