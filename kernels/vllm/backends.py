"""The FlashInfer backend of a release of vLLM, or of a source tree, on the CPU: its own code, on native kernels."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from attnfuzz.kernels.backend import Bench, Op, Session
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow
from attnfuzz.kernels.releases.naming import Named
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.vllm.project import VLLM
from attnfuzz.kernels.vllm.stand_ins import WRITE
from attnfuzz.reference.calibration import shipped_noise
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, QueryView
from attnfuzz.reference.contract import Contract, Holds
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel

CONTRACT: Final = Contract(
    padded_rows=Holds.ANYTHING,
    sources={"padded_rows": "the rows of a layer's output behind the batch are not written (0.26.0: attention.py)"},
)
"""vLLM's layers return no LSE."""

NEEDS: Final = ("flashinfer", "psutil", "pydantic", "triton")
"""The imports of a release beside torch, by their names. They are needed only to run one."""

CAPABILITY: Final = Capability(
    modes=(Mode.DECODE, Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND, Mode.EXTEND, Mode.CHUNKED_PREFILL),
    graph_modes=(Mode.DECODE, Mode.TARGET_VERIFY),
    dtypes=(DType.BFLOAT16, DType.FLOAT16),
    fp8_kv=True,
    kv_scales=(DType.FLOAT8_E4M3,),
    page_sizes=(16, 32, 64),
    layouts=(KvLayout.HND,),
    windows=True,
    sinks=True,
    padding=True,
    empty_kv=False,
    kv_shorter_than_q=False,
    query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
    table_gaps=False,
)
"""The cases that a server of any release has: no request with fewer keys than queries, and pools with heads first.

Speculation by n-grams verifies drafts of different numbers (`draft_extend`).
"""

ENGINE: Final = "engine"
"""The kind of a release whose own engine schedules."""


def capability_of(kind: str) -> Capability:
    """The cases of a kind of a release."""
    return replace(CAPABILITY, schedules=True) if kind == ENGINE else CAPABILITY


@dataclass(frozen=True)
class VllmBackend:
    """The FlashInfer backend of a release, as on a GPU of compute capability 10.0. `named` identifies it."""

    named: Named
    contract: Contract = CONTRACT

    @property
    def capability(self) -> Capability:
        """The supported cases."""
        return capability_of(self.named.kind)

    @property
    def name(self) -> str:
        """A name such as vllm==0.33.0:flashinfer."""
        return str(self.named)

    def noise(self, dtype: DType) -> NoiseModel:
        """The noise of the native kernels in fp32: calibrations of our own backend on them apply here too."""
        return shipped_noise("trtllm_mha", dtype, NoiseModel.fp32_arithmetic())

    @property
    def ops(self) -> Mapping[str, Op]:
        """The native kernels."""
        return {op.name: op for op in (*NATIVE.ops(), WRITE)}

    def missing(self) -> str | None:
        """The missing packages that vLLM's modules import, or the reason that native kernels can't be compiled."""
        lacking = [package for package in NEEDS if importlib.util.find_spec(package) is None]
        return f"needs {', '.join(lacking)}: pip install 'attnfuzz[vllm]'" if lacking else build.missing()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Fetch the release, and compile or load the kernels."""
        release_of(VLLM, self.named.release, progress=progress)
        NATIVE.prepare(progress)

    def open(self, case: Case, bench: Bench) -> Session:
        """Open a session on one case. Imports the release, if this process has not."""
        # These imports need a release's packages: only a process that runs one has to have them.
        from attnfuzz.kernels.vllm.loader import load  # noqa: PLC0415
        from attnfuzz.kernels.vllm.serving.session import EngineSession  # noqa: PLC0415
        from attnfuzz.kernels.vllm.session import VllmSession  # noqa: PLC0415

        kernels = KernelsBelow(tuple(self.ops.values()))
        session = EngineSession if self.named.kind == ENGINE else VllmSession
        return session(load(release_of(VLLM, self.named.release)), kernels, case, bench)
