"""What comes before jobs: find out what can't run, and compile."""

from collections.abc import Callable, Sequence

from attnfuzz.harness.backends.engines import engine_of
from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.sandbox.check import CannotRun, Runner
from attnfuzz.harness.workers import gpu_core
from attnfuzz.kernels.gpu import modules
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.reference.device import Device


def prepare(backends: Sequence[str], progress: Callable[[str], None]) -> None:
    """Check that `backends` can run here, and compile what they need. Each job would do so by itself, out of sight.

    Raises CannotRun, and what resolving and compiling raise.
    """
    resolved = {name: resolve(name) for name in backends}
    for name, backend in resolved.items():
        why_not = backend.missing()
        if why_not is not None:
            raise CannotRun(f"{name} can't run here: {why_not}")
    if any(one.capability.device is Device.CUDA for one in resolved.values()):
        # Makes the folder of core dumps, if one is named: a job would tell out of sight that it can't be made.
        gpu_core.settings()
    # Those of all backends at the same time; what is left to each is then quick.
    modules.build(
        (each for one in resolved.values() if isinstance(one, GpuBackend) for each in one.modules()), progress
    )
    for backend in resolved.values():
        backend.prepare(progress)
    for name in resolved:
        engine = engine_of(name)
        if engine is not None and engine.untried(name):
            _rehearse(name)


def _rehearse(name: str) -> None:
    """Start workers once for an untried release: a job that can't would leave a campaign behind."""
    with Runner([name]) as runner:
        runner.start(name)
