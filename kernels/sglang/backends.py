"""The backends of a release of SGLang, or of a source tree, on the CPU: its own classes, on this project's kernels."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from packaging.version import Version

from attnfuzz.kernels.interface.backend import Bench, Op, Session
from attnfuzz.kernels.libraries.interpreted import no_interpreter
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.sglang.kinds import KINDS, SglangKind, capability_of
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.contract import Contract, Holds
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel

CONTRACT: Final = Contract(
    padded_rows=Holds.ANYTHING,
    sources={
        "padded_rows": "a padded row attends to the tokens of row 0 of req_to_token, or of the request that was there "
        "before (0.5.9: model_executor/input_buffers.py:157); a server's pool holds old keys there, ours NaN"
    },
)
"""SGLang returns no LSE."""

NEEDS: Final = ("triton", "flashinfer", "orjson", "psutil", "pybase64", "zmq", "PIL", "starlette", "pydantic")
"""The packages that a release imports besides torch. They are only needed to run one."""


@dataclass(frozen=True)
class BelowSglang:
    """The part of a backend that follows from a release of this version: how to get it, and its needs."""

    named: Named
    version: Version
    contract: Contract = CONTRACT

    @property
    def name(self) -> str:
        """A name such as sglang==0.5.9:trtllm_mha."""
        return str(self.named)

    def missing(self) -> str | None:
        """Return the packages that SGLang's modules lack, or the reason that native kernels can't be compiled."""
        return absent() or no_interpreter() or build.missing()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Fetch the release, and compile or load the kernels."""
        release_of(SGLANG, self.named.release, progress=progress)
        NATIVE.prepare(progress)


@dataclass(frozen=True)
class SglangBackend(BelowSglang):
    """An attention backend of a release, whose kind is that of `named`, on the CPU."""

    @property
    def kind(self) -> SglangKind:
        """The kind of backend."""
        return KINDS[self.named.kind]

    @cached_property
    def capability(self) -> Capability:
        """The cases that this version's backend supports."""
        return capability_of(self.named.kind, self.version)

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the noise of the kernels. Our own backend on the same kernels shares its model."""
        return self.kind.noise(dtype)

    @property
    def ops(self) -> Mapping[str, Op]:
        """The kernels of this project below the backend."""
        return {op.name: op for op in self.kind.ops()}

    def open(self, case: Case, bench: Bench) -> Session:
        """Open a session on one case. Imports the release, if this process has not."""
        self.kind.check(case)
        return open_session(self.named, KernelsBelow(self.kind.ops()), case, bench)


def open_session(named: Named, kernels: KernelsBelow, case: Case, bench: Bench) -> Session:
    """Return a session on one case. Imports the release, if this process has not. Raises ReleaseError, Unsupported."""
    # Imported here because these modules need a release's packages, which only a process that runs one must have.
    from attnfuzz.kernels.sglang.loader import as_kind, load  # noqa: PLC0415
    from attnfuzz.kernels.sglang.session import SglangMhaSession, SglangMlaSession  # noqa: PLC0415

    session = SglangMlaSession if case.geometry.latent else SglangMhaSession
    loaded = load(release_of(SGLANG, named.release), hopper=bench.device.type == "cuda")
    return session(as_kind(loaded, named.kind), kernels, case, bench)


def absent() -> str | None:
    """Return one line with a release's missing packages and the command to install them; None if none is missing."""
    lacking = [package for package in NEEDS if importlib.util.find_spec(package) is None]
    return f"needs {', '.join(lacking)}: pip install 'attnfuzz[sglang]'" if lacking else None
