"""The TRT-LLM backends on Blackwell, with the geometries of FlashInfer's tests."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.arguments.edges import UNSAID_EDGES
from attnfuzz.kernels.cuda.visible import Arch, processors
from attnfuzz.kernels.gpu import function_argument_rules as rules
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.flashinfer_op import flashinfer_op
from attnfuzz.kernels.gpu.gpu_backend import DEEPSEEK_V3, GpuBackend, bucket
from attnfuzz.kernels.gpu.states import FIXUP, FIXUP_SOURCE, MERGE_MODULE, MERGE_STATE_IN_PLACE
from attnfuzz.kernels.gpu.variants import with_revisions
from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.interface.ops_table import OpsTable, WorkspaceBytes
from attnfuzz.kernels.planning.gather import GATHER_ROWS
from attnfuzz.kernels.planning.plan import BatchMetadata
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.workspace import SharedWorkspace
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import DecodePlan, MlaSession
from attnfuzz.kernels.trtllm.revisions import MHA_REVISIONS, MLA_REVISIONS
from attnfuzz.kernels.trtllm.windowed import WindowedMhaSession
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, Case, KvView, Mask, Mode, QueryView, Step
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel

ARCHS: Final = frozenset({Arch.BLACKWELL, Arch.BLACKWELL_ULTRA})
_WITH_COUNTERS: Final = frozenset({"out", "lse", "workspace_buffer", "multi_ctas_kv_counter_buffer"})

WORKSPACE: Final = WorkspaceBytes(semaphores=256 << 20, scratch=0)
"""The workspace of FlashInfer's tests: 256 MiB that "must be zero initialized" (tests/attention/
test_trtllm_gen_attention.py). No function reports a call's use, so all of it is zero at first use."""


BLACKWELL: Final = OpsTable(
    decode=flashinfer_op("flashinfer.decode", "trtllm_batch_decode_with_kv_cache", _WITH_COUNTERS),
    context=flashinfer_op("flashinfer.prefill", "trtllm_batch_context_with_kv_cache", _WITH_COUNTERS),
    ragged=flashinfer_op(
        "flashinfer.prefill", "trtllm_ragged_attention_deepseek", frozenset({"out", "lse", "workspace_buffer"})
    ),
    mla_decode=flashinfer_op("flashinfer.mla", "trtllm_batch_decode_with_kv_cache_mla", _WITH_COUNTERS),
    merge_state_in_place=MERGE_STATE_IN_PLACE,
    fixup=FIXUP,
    decode_workspace=lambda **_: WORKSPACE,
    prefill_workspace=WORKSPACE,
    # GpuBackend.prepare compiles.
    prepare=lambda _: None,
)


_BACKEND = "trtllm-gen"
_COUNTER_BYTES = 4
_COUNTERS_MULTIPLE = 8


class Counters:
    """The counters by which thread blocks that share a sequence find out which is last.

    Zero at allocation; each launch resets them (FlashInfer, docstring of trtllm_batch_decode_with_kv_cache:
    multi_ctas_kv_counter_buffer). Their number is FlashInfer's: utils.get_trtllm_gen_multi_ctas_kv_counter_bytes.
    """

    def __init__(self, case: Case, bench: Bench) -> None:
        self._q_heads, self._processors = case.geometry.q_heads, processors(bench.device)
        self._buffer = SharedWorkspace(case, bench, "multi_ctas_kv_counter_buffer")

    def take(self, batch: int) -> dict[str, torch.Tensor]:
        """Return the argument with counters for a batch, of exactly the required bytes."""
        counters = max(batch * self._q_heads, self._processors)
        counters = -(-counters // _COUNTERS_MULTIPLE) * _COUNTERS_MULTIPLE
        need = WorkspaceBytes(semaphores=counters * _COUNTER_BYTES, scratch=0)
        return {"multi_ctas_kv_counter_buffer": self._buffer.take(need)}


class BlackwellMhaSession(MhaSession):
    """Multi-head attention."""

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        super().__init__(ops, case, bench)
        self._counters = Counters(case, bench)

    def _decode_arguments(self, step: Step, plan: BatchMetadata, common: dict[str, Any]) -> dict[str, Any]:
        arguments = super()._decode_arguments(step, plan, common)
        return {"backend": _BACKEND, **self._counters.take(step.padded_batch), **arguments}

    def _context_arguments(self, step: Step, plan: BatchMetadata, common: dict[str, Any]) -> dict[str, Any]:
        arguments = super()._context_arguments(step, plan, common)
        return {**self._counters.take(arguments["batch_size"]), **arguments}


class BlackwellWindowedMhaSession(WindowedMhaSession, BlackwellMhaSession):
    """Multi-head attention of layers that are not causal."""


class BlackwellMlaSession(MlaSession):
    """Multi-head latent attention."""

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        super().__init__(ops, case, bench)
        self._counters = Counters(case, bench)

    def _decode_arguments(self, plan: DecodePlan, query: torch.Tensor, results: Results) -> dict[str, Any]:
        arguments = super()._decode_arguments(plan, query, results)
        return {"backend": _BACKEND, **self._counters.take(plan.seq_lens.shape[0]), **arguments}


def _bucket(dtype: DType, head_dim: int, **more: Any) -> Bucket:
    """Return geometries of tests/attention/test_trtllm_gen_attention.py: 2 and 4 KV heads, groups of 1, 5 and 8."""
    return bucket(
        dtype,
        head_dim,
        heads=((2, 2), (10, 2), (16, 2), (32, 4)),
        page_sizes=(16, 32, 64),
        layouts=(KvLayout.HND, KvLayout.NHD),
        windows=(-1, 127, 15, 0),
        sinks=(False, True),
        **more,
    )


_MHA_BUCKETS = (
    _bucket(DType.BFLOAT16, 128),
    _bucket(DType.FLOAT16, 128),
    _bucket(DType.BFLOAT16, 256),
    # The context kernels take no 16-bit queries on an fp8 cache: the tests of prefill have no such pair.
    _bucket(DType.BFLOAT16, 128, kv_dtype=DType.FLOAT8_E4M3, modes=(Mode.DECODE, Mode.TARGET_VERIFY)),
)


def _generated() -> Any:
    from flashinfer.jit.attention import modules  # noqa: PLC0415 - it creates a CUDA context

    generate: Callable[[], Any] = modules.gen_trtllm_gen_fmha_module
    return generate()


GENERATED = Module("the launcher of TRT-LLM's generated kernels", _generated)


_MHA = GpuBackend(
    name="blackwell:trtllm_mha",
    archs=ARCHS,
    capability=Capability(
        device=Device.CUDA,
        edges=UNSAID_EDGES,
        buckets=_MHA_BUCKETS,
        modes=Mode.of_kernels(),
        graph_modes=SPECULATIVE,
        kv_scales=True,
        padding=True,
        query_views=tuple(QueryView),
        kv_views=tuple(KvView),
        pool_holes=True,
        arguments=rules.TRTLLM_MHA,
    ),
    contract=Contract(lse=LseBase.TWO),
    session=partial(BlackwellMhaSession, BLACKWELL),
    kernels=(BLACKWELL.decode, BLACKWELL.context),
    called_as_documented=False,
    modules_of=lambda _: (GENERATED,),
    # Their source is not public.
    theoretical=lambda _: NoiseModel.unknown_kernel(),
)

_MHA_WINDOWED = replace(
    _MHA,
    name="blackwell:trtllm_mha_windowed",
    capability=msgspec.structs.replace(
        _MHA.capability,
        graph_modes=(),
        masks=(Mask.CAUSAL, Mask.FULL, Mask.INTERVALS),
        right_windows=True,
        # A request without keys has no interval of them. Its own formula aligns queries that outnumber the keys to the
        # first key (flashinfer 0.7.4, trace/templates/attention.py:3457), the kernels to the last one.
        kv_shorter_than_q=False,
    ),
    session=partial(BlackwellWindowedMhaSession, BLACKWELL),
)

_MLA = replace(
    _MHA,
    name="blackwell:trtllm_mla",
    capability=msgspec.structs.replace(
        _MHA.capability,
        buckets=(DEEPSEEK_V3,),
        kv_views=(KvView.SEPARATE, KvView.TOKEN_MAJOR),
        pool_holes=True,
        arguments=rules.TRTLLM_MLA,
    ),
    session=partial(BlackwellMlaSession, BLACKWELL),
    kernels=(BLACKWELL.mla_decode, BLACKWELL.ragged, BLACKWELL.merge_state_in_place, BLACKWELL.fixup, GATHER_ROWS),
    modules_of=lambda _: (GENERATED, MERGE_MODULE),
    own=((FIXUP_SOURCE,),),
)

BLACKWELL_BACKENDS = (
    *with_revisions(_MHA, BlackwellMhaSession, BLACKWELL, MHA_REVISIONS),
    _MHA_WINDOWED,
    *with_revisions(_MLA, BlackwellMlaSession, BLACKWELL, MLA_REVISIONS),
)
