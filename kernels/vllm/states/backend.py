"""A recurrent layer of a release of vLLM, or of a source tree: its own planning, on native kernels."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attnfuzz.kernels.interface.backend import Bench, Op
from attnfuzz.kernels.native import build
from attnfuzz.kernels.recurrent.backend import StateBackend
from attnfuzz.kernels.recurrent.capability import StateCapability
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.vllm.backends import absent
from attnfuzz.kernels.vllm.project import VLLM
from attnfuzz.kernels.vllm.states.kinds import STATE_KINDS, StateKind
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.recurrent.case import StateCase, StateMode
from attnfuzz.reference.recurrent.noise import StateNoise


@dataclass(frozen=True)
class PlannedStates:
    """A recurrent layer of a release, whose kind is that of `named`."""

    named: Named

    @property
    def kind(self) -> StateKind:
        """The kind of layer."""
        return STATE_KINDS[self.named.kind]

    @property
    def kernels(self) -> StateBackend:
        """The kernels that the layer runs."""
        return self.kind.kernels

    @cached_property
    def capability(self) -> StateCapability:
        """The capability of the kind."""
        return self.kind.capability

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
        """Return the packages that vLLM's modules lack, or the reason that native kernels can't be compiled."""
        return absent() or build.missing()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Fetch the release, and compile or load the kernels."""
        release_of(VLLM, self.named.release, progress=progress)
        self.kernels.prepare(progress)

    def open(self, case: StateCase, bench: Bench) -> Any:
        """Open a session on one case. Imports the release, if this process has not."""
        # These modules need a release's packages.
        from attnfuzz.kernels.vllm.loader import load  # noqa: PLC0415
        from attnfuzz.kernels.vllm.states.session import PlannedStateSession  # noqa: PLC0415

        loaded = load(release_of(VLLM, self.named.release))
        return PlannedStateSession(self, loaded, self.kind, case, bench)
