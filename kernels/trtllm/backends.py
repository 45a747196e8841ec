"""The TRT-LLM backends as they are, and as they were before or after a reported fix.

A revision is the fixed session with one method turned back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from attnfuzz.kernels.backend import Bench, Op, Session
from attnfuzz.kernels.lengths import longest
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.ops_table import OpsTable
from attnfuzz.kernels.plan import Plan
from attnfuzz.kernels.trtllm.gather import GATHER_ROWS
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession
from attnfuzz.reference.calibration import shipped_noise
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, KvView, Mode, QueryView, Step
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.relation import Relation

# The number of splits follows from the stated maximum and the size of the batch, and they are merged in order
# (native/split_kv.h): a request's place in the batch is nothing that its bits depend on.
NATIVE_CONTRACT = Contract(lse=LseBase.TWO, bitwise=frozenset({Relation.PAGES_RELABELLED, Relation.BATCH_PERMUTED}))

SPECULATIVE = tuple(mode for mode in Mode if mode.speculative)


class MhaTrustsPaddedBatch(MhaSession):
    """SGLang PR #21649: the context kernel is told the batch size that padding has raised since planning."""

    def context_batch(self, step: Step, plan: Plan) -> int:
        """The padded batch, which the metadata has no rows for."""
        del plan
        return step.padded_batch


class MhaDraftExtendOnDecode(MhaSession):
    """SGLang PR #24566: draft extend v2 on the decode kernel, which takes its batch from the padded queries."""

    def uses_decode_kernel(self, mode: Mode) -> bool:
        """Draft extend v2 as well."""
        return super().uses_decode_kernel(mode) or mode is Mode.DRAFT_EXTEND_V2


class MlaReplaysAcceptLengths(MlaSession):
    """SGLang PR #21987: a replay plans lengths for the longest accepted sequence, not for the captured stride."""

    def replay_stride(self, step: Step) -> int:
        """The longest accept length of the batch that is replayed."""
        if step.mode is not Mode.DRAFT_EXTEND:
            return super().replay_stride(step)
        return longest(request.q_len for request in step.requests)


class MlaMergesUnwrittenRows(MlaSession):
    """SGLang PR #22688: chunks are merged without fixing up the rows that the kernel left unwritten."""

    def needs_fixup(self, has_zero_kv: bool) -> bool:
        """Never."""
        del has_zero_kv
        return False


@dataclass(frozen=True)
class TrtllmBackend:
    """A TRT-LLM attention backend over a table of kernels."""

    name: str
    session: type[MhaSession] | type[MlaSession]
    capability: Capability
    table: OpsTable = NATIVE
    contract: Contract = NATIVE_CONTRACT

    def noise(self, dtype: DType) -> NoiseModel:
        """What was measured on this architecture, else the theory."""
        return shipped_noise(self.name, dtype, self.theory(dtype))

    def theory(self, dtype: DType) -> NoiseModel:
        """The native kernels compute in fp32, whatever they read."""
        del dtype
        return NoiseModel.fp32_arithmetic()

    @property
    def ops(self) -> Mapping[str, Op]:
        """The kernels of its table, and what it moves rows with."""
        return {op.name: op for op in (*self.table.ops(), GATHER_ROWS)}

    def missing(self) -> str | None:
        """Why the native kernels can't be compiled here."""
        return build.missing()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Compile, or load from the cache."""
        self.table.prepare(progress)

    def open(self, case: Case, bench: Bench) -> Session:
        """A session on one case."""
        return self.session(self.table, case, bench)

    def revision(self, name: str, session: type[MhaSession] | type[MlaSession]) -> "TrtllmBackend":
        """The same backend, as it was at another time."""
        return replace(self, name=f"{self.name}@{name}", session=session)


MHA = TrtllmBackend(
    name="trtllm_mha",
    session=MhaSession,
    capability=Capability(
        modes=tuple(Mode),
        graph_modes=SPECULATIVE,
        fp8_kv=True,
        windows=True,
        sinks=True,
        kv_scales=True,
        padding=True,
        query_views=tuple(QueryView),
        kv_views=tuple(KvView),
    ),
)

MLA = TrtllmBackend(
    name="trtllm_mla",
    session=MlaSession,
    capability=Capability(
        modes=tuple(Mode),
        graph_modes=SPECULATIVE,
        fp8_kv=True,
        latent=True,
        max_head_dim=576,
        layouts=(KvLayout.HND,),
        kv_scales=True,
        padding=True,
        query_views=tuple(QueryView),
        kv_views=(KvView.SEPARATE, KvView.TOKEN_MAJOR),
    ),
)


TRTLLM_BACKENDS = (
    MHA,
    MHA.revision("21649-before", MhaTrustsPaddedBatch),
    MHA.revision("24566", MhaDraftExtendOnDecode),
    MLA,
    MLA.revision("21987-before", MlaReplaysAcceptLengths),
    MLA.revision("22688-before", MlaMergesUnwrittenRows),
)
