"""A function backend on a library that may be missing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from attnfuzz.kernels.backend import Op
from attnfuzz.kernels.function_backend import FunctionBackend
from attnfuzz.kernels.libraries.installed import Installed
from attnfuzz.reference.calibration import shipped_noise
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel


@dataclass(frozen=True, kw_only=True)
class LibraryBackend(Installed, FunctionBackend):
    """A kernel of a library: a FunctionBackend called `label`, such as "onnxruntime:gqa".

    `noise_models` are those of a correct kernel by dtype, `noise_model` that of the others; a shipped calibration
    replaces both.
    """

    noise_models: Mapping[DType, NoiseModel] = field(default_factory=dict)

    @property
    def ops(self) -> Mapping[str, Op]:
        """The function, under the name of the kernel."""
        return {self.kernel: Op(name=self.kernel, function=self.function, writes=self.writes | {"out", "lse"})}

    def noise(self, dtype: DType) -> NoiseModel:
        """The model calibrated on this architecture with these versions, or the theory."""
        return shipped_noise(self.name, dtype, self.theory(dtype), libraries=self.versions())

    def theory(self, dtype: DType) -> NoiseModel:
        """The model of `dtype`."""
        return self.noise_models.get(dtype, self.noise_model)
