"""SGLang as an engine."""

from collections.abc import Mapping
from typing import ClassVar

from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.releases.engine import ReleasedEngine
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.sglang.backends import SglangBackend
from attnfuzz.kernels.sglang.on_hopper import hopper_backend_of
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.kernels.sglang.sparse.backend import SglangSparseBackend
from attnfuzz.kernels.sglang.sparse.kinds import SPARSE_KINDS
from attnfuzz.kernels.sglang.states.backend import planned_states
from attnfuzz.kernels.sglang.states.kinds import STATE_KINDS
from attnfuzz.kernels.sglang.writers import writer_of
from attnfuzz.reference.device import Device


class Sglang(ReleasedEngine):
    """Releases of SGLang, and source trees."""

    project = SGLANG
    preloads: ClassVar[Mapping[Device, str]] = {
        Device.CPU: "attnfuzz.kernels.sglang.preload:load_release",
        Device.CUDA: "attnfuzz.kernels.sglang.preload:load_release_for_hopper",
    }

    def backend_of(self, named: Named) -> Backend:
        """Return the backend of a name. Fetches and imports nothing. Raises ReleaseError for an invalid tree."""
        version = named.version or release_of(SGLANG, named.release).version
        if named.kind in SPARSE_KINDS:
            # The harness asks a family's backends for their cases, and no other.
            return SglangSparseBackend(named, version)  # type: ignore[return-value]
        if named.kind in STATE_KINDS:
            return planned_states(named)  # type: ignore[return-value]
        if not named.gpu:
            return SglangBackend(named, version)
        if named.kind in SGLANG.gpu_kinds:
            return writer_of(named, version)
        return hopper_backend_of(named, version)


ENGINE = Sglang()
