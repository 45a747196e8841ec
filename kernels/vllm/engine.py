"""vLLM as an engine."""

from collections.abc import Mapping
from typing import ClassVar

from attnfuzz.kernels.backend import Backend
from attnfuzz.kernels.releases.engine import ReleasedEngine
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.vllm.backends import VllmBackend
from attnfuzz.kernels.vllm.project import VLLM
from attnfuzz.reference.device import Device


class Vllm(ReleasedEngine):
    """The releases whose FlashInfer backend is known, and source trees."""

    project = VLLM
    preloads: ClassVar[Mapping[Device, str]] = {Device.CPU: "attnfuzz.kernels.vllm.loader:load_release"}
    # On the same kernels of FlashInfer.
    equivalents: ClassVar[Mapping[str, str]] = {"trtllm_mha": "flashinfer"}

    def backend_of(self, named: Named) -> Backend:
        """Return the backend of a name. Fetches and imports nothing. Raises ReleaseError for an invalid tree."""
        if named.tree is not None:
            release_of(VLLM, named.release)
        return VllmBackend(named)


ENGINE = Vllm()
