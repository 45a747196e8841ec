"""A planner of sparse attention of a release of vLLM, or of a source tree, on the CPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnfuzz.kernels.interface.backend import Bench, Op
from attnfuzz.kernels.libraries.interpreted import no_interpreter
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.project import Project
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.vllm.backends import absent
from attnfuzz.kernels.vllm.project import VLLM
from attnfuzz.kernels.vllm.sparse.kernels import OPS
from attnfuzz.kernels.vllm.sparse.kinds import SPARSE_KINDS
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import SparseCase, SparseOp

if TYPE_CHECKING:
    from attnfuzz.kernels.vllm.sparse.session import PlannedSession


@dataclass(frozen=True)
class VllmSparseBackend:
    """A planner of a release, whose kind is that of `named`."""

    named: Named
    contract: Contract = Contract()
    project: Project = VLLM

    @property
    def name(self) -> str:
        """A name such as vllm==0.33.0:indexer."""
        return str(self.named)

    @property
    def capability(self) -> SparseCapability:
        """The capability of the kind."""
        return SPARSE_KINDS[self.named.kind].capability

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the noise of the native kernels."""
        del dtype
        return NoiseModel.fp32_arithmetic()

    @property
    def ops(self) -> Mapping[str, Op]:
        """The native kernels. Triton's are the release's own."""
        return {op.name: op for op in OPS}

    def missing(self) -> str | None:
        """Return the packages that vLLM's modules lack, or the reason that native kernels can't be compiled."""
        return absent() or no_interpreter() or build.missing()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Fetch the release, and compile or load the kernels."""
        release_of(VLLM, self.named.release, progress=progress)
        NATIVE.prepare(progress)

    def open(self, case: SparseCase, bench: Bench) -> "PlannedSession":
        """Open a session on one case. Imports the release, if this process has not."""
        # These modules need a release's packages, which only a process that runs one must have.
        from attnfuzz.kernels.vllm.loader import load  # noqa: PLC0415
        from attnfuzz.kernels.vllm.sparse.session import AttendedSession, IndexerSession, SlotSession  # noqa: PLC0415

        sessions: dict[SparseOp, Callable[..., PlannedSession]] = {
            SparseOp.TOP_K: IndexerSession,
            SparseOp.TRANSFORM: SlotSession,
            SparseOp.ATTENTION: AttendedSession,
        }
        session = sessions[self.capability.chains[0][-1]]
        return session(load(release_of(VLLM, self.named.release), self.named.kind), KernelsBelow(OPS), case, bench)
