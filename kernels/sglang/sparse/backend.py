"""A server with sparse attention, of a release or a source tree, as a backend on the CPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnfuzz.kernels.interface.backend import Bench, Op
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.sglang.backends import BelowSglang
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.kernels.sglang.sparse.kinds import SPARSE_KINDS, DsaKind
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import SparseCase

if TYPE_CHECKING:
    from attnfuzz.kernels.sglang.sparse.session import DsaSession


@dataclass(frozen=True)
class SglangSparseBackend(BelowSglang):
    """A server of a release, whose kind is that of `named`."""

    @property
    def kind(self) -> DsaKind:
        """The kind of server."""
        return SPARSE_KINDS[self.named.kind]

    @property
    def capability(self) -> SparseCapability:
        """The cases of the kind in this version."""
        return self.kind.capability_in(self.version)

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the noise of the native kernels."""
        del dtype
        return NoiseModel.fp32_arithmetic()

    @property
    def ops(self) -> Mapping[str, Op]:
        """The native kernels. Triton's are the release's own."""
        return {op.name: op for op in self.kind.ops()}

    def open(self, case: SparseCase, bench: Bench) -> "DsaSession":
        """Open a session on one case. Imports the release, if this process has not."""
        # These modules need a release's packages, which only a process that runs one must have.
        from attnfuzz.kernels.sglang.loader import as_kind, load  # noqa: PLC0415
        from attnfuzz.kernels.sglang.sparse.session import DsaSession  # noqa: PLC0415

        loaded = as_kind(load(release_of(SGLANG, self.named.release)), self.named.kind)
        return DsaSession(loaded, KernelsBelow(self.kind.ops()), case, bench)
