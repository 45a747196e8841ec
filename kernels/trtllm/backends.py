"""The TRT-LLM backends on the CPU: the current ones, and revisions before or after a reported fix."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from msgspec import structs

from attnfuzz.kernels.arguments.edges import opened
from attnfuzz.kernels.interface.backend import Bench, Op, Session
from attnfuzz.kernels.interface.ops_table import OpsTable
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import NATIVE
from attnfuzz.kernels.planning.gather import GATHER_ROWS
from attnfuzz.kernels.trtllm.masked import MaskedMhaSession
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession
from attnfuzz.kernels.trtllm.planned import LIFE, PlannedMhaSession
from attnfuzz.kernels.trtllm.revisions import MHA_REVISIONS, MLA_REVISIONS
from attnfuzz.kernels.trtllm.windowed import WindowedMhaSession
from attnfuzz.reference.arguments import ArgumentForm, ArgumentStanding, promised
from attnfuzz.reference.calibration import shipped_noise
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import (
    SPECULATIVE,
    BlockScales,
    Case,
    Granularity,
    KvView,
    Mask,
    OtherGroup,
    QueryView,
    Tombstone,
)
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.edges import Edge, EdgeRule
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import ROUNDOFF, NoiseModel
from attnfuzz.reference.relation import Relation

# The number of splits follows from the stated maximum and the batch size, and splits are merged in order
# (native/split_kv.h), so bits do not depend on a request's place in the batch.
NATIVE_CONTRACT = Contract(lse=LseBase.TWO, bitwise=frozenset({Relation.PAGES_RELABELLED, Relation.BATCH_PERMUTED}))


@dataclass(frozen=True)
class TrtllmBackend:
    """A TRT-LLM attention backend over a table of kernels."""

    name: str
    session: type[MhaSession] | type[MlaSession]
    capability: Capability
    table: OpsTable = NATIVE
    contract: Contract = NATIVE_CONTRACT
    shares_pool: ClassVar[bool] = True
    in_inference_mode: ClassVar[bool] = True

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the model calibrated on this architecture, or the theory."""
        return shipped_noise(self.name, dtype, self.theory(dtype))

    def theory(self, dtype: DType) -> NoiseModel:
        """Return the model of fp32 arithmetic, which the native kernels use whatever dtype they read."""
        return NoiseModel.fp32_arithmetic()

    @property
    def ops(self) -> Mapping[str, Op]:
        """The kernels of its table, and the op that moves rows."""
        return {op.name: op for op in (*self.table.ops(), GATHER_ROWS)}

    def missing(self) -> str | None:
        """Return the reason that the native kernels can't be compiled here, or None."""
        return build.missing()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Compile the kernels, or load them from the cache."""
        self.table.prepare(progress)

    def open(self, case: Case, bench: Bench) -> Session:
        """Open a session on one case."""
        return opened(partial(self.session, self.table), case, bench, self.capability)

    def revision(self, name: str, session: type[MhaSession] | type[MlaSession]) -> "TrtllmBackend":
        """Return the same backend at another revision."""
        return replace(self, name=f"{self.name}@{name}", session=session)


MHA = TrtllmBackend(
    name="trtllm_mha",
    session=MhaSession,
    capability=Capability(
        graph_modes=SPECULATIVE,
        layouts=(KvLayout.HND, KvLayout.NHD),
        fp8_kv=True,
        windows=True,
        sinks=True,
        kv_scales=True,
        padding=True,
        query_views=tuple(QueryView),
        kv_views=tuple(KvView),
        pool_holes=True,
        tombstones=tuple(Tombstone)[1:],
        other_groups=tuple(OtherGroup)[1:],
        arguments=promised("kernels/native/views.h: window_left is int64", ArgumentForm.WINDOW_FAR),
        edges=tuple(
            EdgeRule(edge, ArgumentStanding.PROMISED, "kernels/native/ops.py: any numbers, and batches of none")
            for edge in Edge
        ),
    ),
)


@dataclass(frozen=True)
class ScaledBackend(TrtllmBackend):
    """A backend that multiplies keys and values by tensors of scales."""

    def theory(self, dtype: DType) -> NoiseModel:
        """Return the model of native kernels that round the scaled operands to fp32."""
        return structs.replace(super().theory(dtype), operands=ROUNDOFF[torch.float32])


MHA_SCALED = ScaledBackend(
    name="trtllm_mha_scaled",
    session=MhaSession,
    capability=structs.replace(
        MHA.capability, granularities=(Granularity.TENSOR, Granularity.HEAD, Granularity.TOKEN_HEAD)
    ),
)

MHA_NVFP4 = TrtllmBackend(
    name="trtllm_mha_nvfp4",
    session=MhaSession,
    capability=structs.replace(
        MHA.capability,
        fp8_kv=False,
        other_groups=(),
        granularities=(Granularity.BLOCK,),
        block_scales=tuple(BlockScales),
        head_dims=(16, 32, 64, 80, 96, 128, 192, 256),
    ),
)

MHA_MASKED = TrtllmBackend(
    name="trtllm_mha_masked",
    session=MaskedMhaSession,
    capability=structs.replace(
        MHA.capability, graph_modes=(), masks=tuple(Mask), windowed_masks=tuple(Mask), attention_chunks=True
    ),
)

MHA_WINDOWED = TrtllmBackend(
    name="trtllm_mha_windowed",
    session=WindowedMhaSession,
    capability=structs.replace(
        MHA.capability, graph_modes=(), masks=(Mask.CAUSAL, Mask.FULL, Mask.INTERVALS), right_windows=True
    ),
)

MHA_PLANNED = TrtllmBackend(
    name="trtllm_mha_planned",
    session=PlannedMhaSession,
    capability=structs.replace(MHA_MASKED.capability, earlier_uses=LIFE, attention_chunks=False),
)

MLA = TrtllmBackend(
    name="trtllm_mla",
    session=MlaSession,
    capability=structs.replace(
        MHA.capability,
        latent=True,
        max_head_dim=576,
        layouts=(KvLayout.HND,),
        windows=False,
        arguments=(),
        tombstones=(),
        other_groups=(),
        sinks=False,
        kv_views=(KvView.SEPARATE, KvView.TOKEN_MAJOR),
    ),
)

TRTLLM_BACKENDS = (
    MHA,
    *(MHA.revision(name, session) for name, session in MHA_REVISIONS.items()),
    MHA_SCALED,
    MHA_NVFP4,
    MHA_MASKED,
    MHA_WINDOWED,
    MHA_PLANNED,
    MLA,
    *(MLA.revision(name, session) for name, session in MLA_REVISIONS.items()),
)


def backends() -> tuple[TrtllmBackend, ...]:
    """Return all of them."""
    return TRTLLM_BACKENDS
