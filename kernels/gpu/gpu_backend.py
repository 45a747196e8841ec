"""The common part of all backends on a GPU: an architecture, modules to compile, and ops."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from packaging.version import Version

from attnfuzz.kernels.arguments.edges import opened
from attnfuzz.kernels.cuda import guards, nvcc, visible
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import modules
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.interface.backend import Bench, Op, Session, Unsupported
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.calibration import shipped_noise
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout, Latent
from attnfuzz.reference.noise import NoiseModel

_DISTRIBUTIONS: Final = {"flashinfer": ("flashinfer-python",), "cudnn": ("nvidia-cudnn-frontend", "torch")}
"""Distributions that have the kernels of a Python package: torch's build comes with cuDNN."""

OpenSession = Callable[[Case, Bench], Session]


def bucket(dtype: DType, head_dim: int, *, kv_dtype: DType | None = None, **more: Any) -> Bucket:
    """Make a bucket of one head dim. The KV cache has the dtype of the queries by default."""
    return Bucket(dtype=dtype, kv_dtype=kv_dtype or dtype, head_dim_qk=head_dim, head_dim_vo=head_dim, **more)


@dataclass(frozen=True, kw_only=True)
class GpuBackend:
    """A backend over kernels that run on GPUs of `archs`.

    `session` opens a session; `kernels` are its ops. `modules_of` returns the modules that a bucket's geometries need;
    `theoretical` the noise of a correct run on queries of a dtype. `needs` names Python packages beside torch.
    `called_as_documented` is false if a planner makes the arguments of its kernels, which may then be at fault.
    `own` are the libraries of this project that it launches, each as its source files (`nvcc.build`). Its
    calibration is that of the backend `measured_as`, if one is named, which has the same kernels.
    """

    name: str
    archs: frozenset[Arch]
    capability: Capability
    contract: Contract
    session: OpenSession
    kernels: tuple[Op, ...]
    theoretical: Callable[[DType], NoiseModel]
    modules_of: Callable[[Bucket], tuple[Module, ...]] = lambda _: ()
    needs: tuple[str, ...] = ("flashinfer",)
    own: tuple[tuple[Path, ...], ...] = ()
    called_as_documented: bool = True
    measured_as: str = ""

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the model calibrated on this GPU's architecture with the same packages, or the theory."""
        name, theory = self.measured_as or self.name, self.theory(dtype)
        return shipped_noise(name, dtype, theory, visible.architecture(), self.versions())

    def theory(self, dtype: DType) -> NoiseModel:
        """Return the model that follows from the known properties of its kernels."""
        return self.theoretical(dtype)

    @property
    def ops(self) -> Mapping[str, Op]:
        """Its kernels by name."""
        return {op.name: op for op in self.kernels}

    def missing(self) -> str | None:
        """Return why this machine can't run it. Creates no CUDA context, so that workers can still be forked."""
        return visible.missing(self.archs, self.needs)

    @property
    def package(self) -> str:
        """The package with its kernels, "" if they are this project's."""
        return next(iter(self.needs), "" if self.own else "torch")

    def versions(self) -> Mapping[str, str]:
        """Return the versions of the packages with its kernels (torch's build has cuDNN), none for this project's."""
        found = {name: _version(name) for each in self.needs for name in _DISTRIBUTIONS[each]}
        if not (self.needs or self.own):
            found["torch"] = _version("torch")
        return {name: number for name, number in found.items() if number}

    @property
    def libraries(self) -> tuple[tuple[Path, ...], ...]:
        """The libraries of this project that its cases need, each as its source files."""
        return ((guards.SOURCE,), *self.own)

    def modules(self) -> tuple[Module, ...]:
        """List all modules that its buckets need, without duplicates."""
        return tuple(dict.fromkeys(module for bucket in self.capability.buckets for module in self.modules_of(bucket)))

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Compile the modules missing in the caches. Loads nothing, so that workers can still be forked."""
        for files in self.libraries:
            nvcc.build(files, progress=progress)
        modules.build(self.modules(), progress)

    def open(self, case: Case, bench: Bench) -> Session:
        """Open a session on one case.

        Raises:
            Unsupported: each bucket that a step could run on has a module that can't be compiled; names one with the
                compiler's message.

        """
        covering = [bucket for bucket in self.capability.buckets if bucket.covers(case.geometry)]
        rejected = {bucket: modules.rejected(self.modules_of(bucket)) for bucket in covering}
        for step in case.steps:
            reasons = [rejected[bucket] for bucket in covering if bucket.why_not_step(step) is None]
            if reasons and all(reasons):
                name, reason = next(iter(reasons[0].items()))
                raise Unsupported(f"{name} does not compile: {reason}")
        return opened(self.session, case, bench, self.capability)


@cache
def _version(distribution: str) -> str:
    """Return the release of an installed distribution, "" if it is missing. Reading metadata takes a millisecond."""
    try:
        return Version(version(distribution)).public
    except PackageNotFoundError:
        return ""


DEEPSEEK_V3: Final = Bucket(
    dtype=DType.BFLOAT16,
    kv_dtype=DType.BFLOAT16,
    head_dim_qk=576,
    head_dim_vo=512,
    # Its 128 heads on 16, 8 and 1 ranks.
    heads=((8, 1), (16, 1), (128, 1)),
    page_sizes=(32, 64),
    layouts=(KvLayout.HND,),
    latent=Latent(rank=512, rope=64, nope=128, vo=128),
)
