"""How the error that a backend may show is known, in words."""

from attnfuzz.kernels.backend import Backend
from attnfuzz.reference.noise import Origin


def noise_words(backend: Backend) -> str:
    """Which noise model judges a backend here, in a clause without a full stop."""
    if uncalibrated(backend):
        return "uncalibrated: judged as an unknown kernel"
    if all(backend.noise(dtype).origin is Origin.CALIBRATED for dtype in backend.capability.dtypes):
        return "noise model calibrated on this architecture"
    return "noise model from theory"


def uncalibrated(backend: Backend) -> bool:
    """Whether a backend is judged as an unknown kernel, for queries of some dtype."""
    return any(backend.noise(dtype).origin is Origin.UNKNOWN for dtype in backend.capability.dtypes)
