"""The TRT-LLM backends on Hopper."""

from functools import partial
from typing import Final

import msgspec
import torch

from attnfuzz.kernels.arguments.edges import UNSAID_EDGES
from attnfuzz.kernels.cuda.visible import Arch, processors
from attnfuzz.kernels.gpu import function_argument_rules as rules
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.direct import fmha_v2, mla, xqa
from attnfuzz.kernels.gpu.direct.mla import MLA_OPS
from attnfuzz.kernels.gpu.flashinfer_op import flashinfer_op
from attnfuzz.kernels.gpu.gpu_backend import DEEPSEEK_V3, GpuBackend, bucket
from attnfuzz.kernels.gpu.hopper.sessions import MLA_BACKEND, HopperMhaAsServed, HopperMhaSession, HopperMlaSession
from attnfuzz.kernels.gpu.states import FIXUP, FIXUP_SOURCE, MERGE_MODULE, MERGE_STATE_IN_PLACE
from attnfuzz.kernels.gpu.variants import as_served, with_revisions
from attnfuzz.kernels.gpu.wrappers.backends import fa2_noise, prefill_modules
from attnfuzz.kernels.gpu.wrappers.ragged import FA3_RAGGED
from attnfuzz.kernels.interface.ops_table import OpsTable, WorkspaceBytes
from attnfuzz.kernels.planning.gather import GATHER_ROWS
from attnfuzz.kernels.trtllm.revisions import MHA_REVISIONS, MLA_REVISIONS
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, KvView, Mode, QueryView
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout


def _xqa_workspace(*, head_dim_vo: int, max_seq_len: int, **sizes: int) -> WorkspaceBytes:
    """Return the workspace of XQA, which splits by the number of multiprocessors, not by the stated maximum."""
    del max_seq_len
    return xqa.workspace_bytes(**sizes, head_dim=head_dim_vo, processors=processors(torch.device("cuda", 0)))


_WRITES: Final = frozenset({"out", "workspace_buffer"})

HOPPER: Final = OpsTable(
    decode=flashinfer_op("flashinfer.decode", "trtllm_batch_decode_with_kv_cache", _WRITES),
    context=fmha_v2.FMHA_V2_OP,
    ragged=FA3_RAGGED.run_op,
    mla_decode=MLA_OPS["run"],
    merge_state_in_place=MERGE_STATE_IN_PLACE,
    fixup=FIXUP,
    decode_workspace=_xqa_workspace,
    prefill_workspace=fmha_v2.WORKSPACE,
    # GpuBackend.prepare compiles.
    prepare=lambda _: None,
)


SMALL = bucket(
    DType.BFLOAT16,
    64,
    heads=((2, 1), (4, 2), (16, 8)),
    page_sizes=(16,),
    # SGLang's layout, and one module of fmha_v2, which takes an hour of one core to compile.
    layouts=(KvLayout.HND,),
    sinks=(False, True),
    strides=(4,),
)
# XQA has separate modules with and without a window.
WINDOWED = msgspec.structs.replace(
    SMALL, head_dim_qk=128, head_dim_vo=128, heads=((4, 1), (8, 2)), page_sizes=(64,), windows=(127, 31, 7, 0)
)
# There are many modules of XQA and few of fmha_v2: this geometry only decodes. An fp8 cache is computed in fp8, with
# another error, and is left to the backend xqa_fp8.
_HALVES = msgspec.structs.replace(
    SMALL,
    dtype=DType.FLOAT16,
    kv_dtype=DType.FLOAT16,
    heads=((1, 1), (4, 4)),
    page_sizes=(32,),
    layouts=(KvLayout.HND, KvLayout.NHD),
    strides=(3,),
    modes=(Mode.DECODE, Mode.TARGET_VERIFY),
)


def _mha_modules(bucket: Bucket) -> tuple[Module, ...]:
    layouts = () if bucket.modes else tuple(map(fmha_v2.paged_layout, bucket.layouts))
    return (*xqa.modules_of(bucket, ragged=False), *fmha_v2.modules_of(bucket, layouts))


def _mla_modules(bucket: Bucket) -> tuple[Module, ...]:
    assert bucket.latent is not None
    prefill = msgspec.structs.replace(
        bucket, head_dim_qk=bucket.latent.nope + bucket.latent.rope, head_dim_vo=bucket.latent.vo, latent=None
    )
    decode = mla.modules_of(bucket, MLA_BACKEND)
    return (*decode, *prefill_modules(prefill, FA3_RAGGED.backend), MERGE_MODULE)


_ARCHS: Final = frozenset({Arch.HOPPER})

_MHA = GpuBackend(
    name="hopper:trtllm_mha",
    archs=_ARCHS,
    capability=Capability(
        device=Device.CUDA,
        edges=UNSAID_EDGES,
        buckets=(SMALL, WINDOWED, _HALVES),
        modes=Mode.of_kernels(),
        graph_modes=SPECULATIVE,
        kv_scales=True,
        padding=True,
        # fmha_v2 takes K and V in one contiguous pool (docstring of trtllm_fmha_v2_prefill), and both kernels need
        # contiguous queries, as SGLang makes them (trtllm_mha_backend.py: q.contiguous()).
        query_views=(QueryView.CONTIGUOUS,),
        kv_views=(KvView.PAIRED,),
        pool_holes=True,
        # XQA's page table is an array [batch][beam][2][pages] (xqa/mhaUtils.cuh, KVCacheList), fmha_v2's has the shape
        # [B, W, 2, M] (fmha/paged_kv_cache.h): neither has gaps between rows.
        table_gaps=False,
        arguments=rules.HOPPER_TRTLLM_MHA,
    ),
    contract=Contract(),
    session=partial(HopperMhaSession, HOPPER),
    kernels=(HOPPER.decode, HOPPER.context),
    called_as_documented=False,
    modules_of=_mha_modules,
    # XQA's is unknown, too.
    theoretical=fmha_v2.noise,
)

_MLA = GpuBackend(
    name="hopper:trtllm_mla",
    archs=_ARCHS,
    capability=Capability(
        device=Device.CUDA,
        edges=UNSAID_EDGES,
        buckets=(DEEPSEEK_V3,),
        modes=Mode.of_kernels(),
        graph_modes=SPECULATIVE,
        padding=True,
        query_views=tuple(QueryView),
        kv_views=(KvView.SEPARATE, KvView.TOKEN_MAJOR),
        pool_holes=True,
        arguments=rules.HOPPER_TRTLLM_MLA,
    ),
    contract=Contract(lse=LseBase.TWO),
    session=partial(HopperMlaSession, HOPPER),
    kernels=(
        *MLA_OPS.values(),
        *FA3_RAGGED.ops,
        HOPPER.merge_state_in_place,
        HOPPER.fixup,
        GATHER_ROWS,
    ),
    called_as_documented=False,
    modules_of=_mla_modules,
    # At worst, weights are rounded before they are summed.
    theoretical=fa2_noise,
    own=((FIXUP_SOURCE,),),
)

_MHA_AS_SERVED = as_served(
    _MHA, partial(HopperMhaAsServed, HOPPER), kv_scales=False, empty_kv=False, kv_shorter_than_q=False
)

# SGLang's PRs #21649 and #22688 can't show here: FlashInfer compares the rows of fmha_v2's page table with its batch,
# and its own kernels write the rows of requests without keys.
_MHA_SHOWS, _MLA_SHOWS = "24566", "21987-before"

HOPPER_BACKENDS = (
    *with_revisions(_MHA, HopperMhaSession, HOPPER, {_MHA_SHOWS: MHA_REVISIONS[_MHA_SHOWS]}),
    _MHA_AS_SERVED,
    *with_revisions(_MLA, HopperMlaSession, HOPPER, {_MLA_SHOWS: MLA_REVISIONS[_MLA_SHOWS]}),
)
