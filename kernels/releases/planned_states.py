"""A recurrent layer of a release, or of a source tree: its own planning, on native kernels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attnfuzz.kernels.interface.backend import Bench, Op
from attnfuzz.kernels.native import build
from attnfuzz.kernels.recurrent.backend import StateBackend
from attnfuzz.kernels.recurrent.capability import StateCapability
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.recurrent.case import StateCase, StateMode
from attnfuzz.reference.recurrent.noise import StateNoise


@dataclass(frozen=True)
class PlannedStates:
    """A kind of recurrent layer of a release, which runs `kernels`.

    `absent` returns the packages that the release's modules lack, or None, and `session` opens a session on a case; it
    imports the release, if this process has not.
    """

    named: Named
    kernels: StateBackend
    capability: StateCapability
    absent: Callable[[], str | None]
    session: Callable[["PlannedStates", StateCase, Bench], Any]

    @property
    def name(self) -> str:
        """A name such as vllm==0.33.0:gdn."""
        return str(self.named)

    @property
    def contract(self) -> Contract:
        """The promises besides right outputs and states: none."""
        return Contract()

    @property
    def ops(self) -> Mapping[str, Op]:
        """The native kernels."""
        return self.kernels.ops

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the model of attention, which nothing asks for."""
        return self.kernels.noise(dtype)

    def noise_of(self, mode: StateMode, state_dtype: DType) -> StateNoise:
        """Return the errors of a correct step of this mode."""
        return self.kernels.noise_of(mode, state_dtype)

    def missing(self) -> str | None:
        """Return the packages that the release's modules lack, or the reason that native kernels can't be compiled."""
        return self.absent() or build.missing()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Fetch the release, and compile or load the kernels."""
        release_of(self.named.project, self.named.release, progress=progress)
        self.kernels.prepare(progress)

    def open(self, case: StateCase, bench: Bench) -> Any:
        """Open a session on one case."""
        return self.session(self, case, bench)
