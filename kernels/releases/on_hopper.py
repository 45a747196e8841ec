"""A backend of a release on a Hopper GPU, whatever its engine."""

from collections.abc import Callable
from dataclasses import dataclass

from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.release import release_of


@dataclass(frozen=True, kw_only=True)
class HopperRelease(GpuBackend):
    """A part of a release. `named` identifies it, and `absent` returns the reason that it can't be imported, if any."""

    named: Named
    absent: Callable[[], str | None]

    def missing(self) -> str | None:
        """Return the reason that this machine can't run it, in one line; None if it can."""
        return super().missing() or self.absent()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Fetch the release, and compile the kernels."""
        release_of(self.named.project, self.named.release, progress=progress)
        super().prepare(progress)
