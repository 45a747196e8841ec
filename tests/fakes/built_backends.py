"""The backends on GPUs that tests run: those that this machine can run and has compiled."""

import pytest

from attnfuzz.harness.backends.registry import fixed
from attnfuzz.kernels.gpu import modules
from attnfuzz.kernels.gpu.catalogue import GPU_BACKENDS

WITHOUT_BUGS = [backend.name for backend in GPU_BACKENDS if fixed(backend.name) == backend.name]
"""The names of all that are no revision of another."""


def skip_unless_built(name: str) -> None:
    """Skip what this GPU can't run, and what would first have to be compiled: that takes minutes."""
    (backend,) = (each for each in GPU_BACKENDS if each.name == name)
    reason = backend.missing()
    if reason is not None:
        pytest.skip(reason)
    if modules.unbuilt(backend.modules()):
        pytest.skip(f"not compiled yet: attnfuzz build --backend {name}")
