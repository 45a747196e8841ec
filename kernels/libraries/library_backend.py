"""A function backend on a library that may be missing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from attnfuzz.kernels.backend import Op
from attnfuzz.kernels.function_backend import FunctionBackend
from attnfuzz.reference.calibration import shipped_noise
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel


def no_reason() -> None:
    """There is no further reason."""


@dataclass(frozen=True, kw_only=True)
class LibraryBackend(FunctionBackend):
    """A kernel of a library: a FunctionBackend called `label`, such as "onnxruntime:gqa".

    `extra` is the extra of attnfuzz that installs the library; without one, it comes with attnfuzz. `packages` maps the
    distributions that it needs to the oldest versions that have the kernel. `why_not` gives another reason that the
    kernel can't run on this machine, or None; it must not import the library. `noise_models` are those of a correct
    kernel by dtype, `noise_model` that of the others; a shipped calibration replaces both.
    """

    label: str
    extra: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    why_not: Callable[[], str | None] = no_reason
    noise_models: Mapping[DType, NoiseModel] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The label."""
        return self.label

    @property
    def ops(self) -> Mapping[str, Op]:
        """The function, under the label as the name of a kernel."""
        name = self.label.replace(":", "_")
        return {name: Op(name=name, function=self.function, writes=self.writes | {"out", "lse"})}

    def noise(self, dtype: DType) -> NoiseModel:
        """The model calibrated on this architecture, or the theory."""
        return shipped_noise(self.name, dtype, self.theory(dtype))

    def theory(self, dtype: DType) -> NoiseModel:
        """The model of `dtype`."""
        return self.noise_models.get(dtype, self.noise_model)

    def missing(self) -> str | None:
        """The package that is missing or too old, or the reason of `why_not`. Imports no library."""
        for package, oldest in self.packages.items():
            try:
                found = version(package)
            except PackageNotFoundError:
                return f"{package} is not installed: {self._remedy(package, oldest)}"
            if Version(found) < Version(oldest):
                return f"{package} {found} is older than {oldest}: {self._remedy(package, oldest)}"
        return self.why_not()

    def _remedy(self, package: str, oldest: str) -> str:
        return f"pip install 'attnfuzz[{self.extra}]'" if self.extra else f"pip install '{package}>={oldest}'"
