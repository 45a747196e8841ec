"""The TRT-LLM backends on Blackwell. Which geometries its kernels are generated for, FlashInfer's tests say."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from attnfuzz.kernels.gpu.arch import Arch
from attnfuzz.kernels.gpu.blackwell.ops import BLACKWELL
from attnfuzz.kernels.gpu.blackwell.sessions import BlackwellMhaSession, BlackwellMlaSession
from attnfuzz.kernels.gpu.deepseek import DEEPSEEK_V3
from attnfuzz.kernels.gpu.fixup import SOURCE
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.merge import MERGE_MODULE
from attnfuzz.kernels.gpu.module import Module
from attnfuzz.kernels.gpu.revisions import with_revisions
from attnfuzz.kernels.trtllm.gather import GATHER_ROWS
from attnfuzz.kernels.trtllm.revisions import MHA_REVISIONS, MLA_REVISIONS
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, KvView, Mode, QueryView
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel

_LAYOUTS = (KvLayout.HND, KvLayout.NHD)
_WINDOWS = (-1, 127, 15, 0)


def _heads(head_dim: int, dtype: DType, kv_dtype: DType, modes: tuple[Mode, ...] = ()) -> Bucket:
    """Geometries of tests/attention/test_trtllm_gen_attention.py: 2 and 4 KV heads, groups of 1, 5 and 8."""
    return Bucket(
        dtype=dtype,
        kv_dtype=kv_dtype,
        head_dim_qk=head_dim,
        head_dim_vo=head_dim,
        heads=((2, 2), (10, 2), (16, 2), (32, 4)),
        page_sizes=(16, 32, 64),
        layouts=_LAYOUTS,
        windows=_WINDOWS,
        sinks=(False, True),
        modes=modes,
    )


_MHA_BUCKETS = (
    _heads(128, DType.BFLOAT16, DType.BFLOAT16),
    _heads(128, DType.FLOAT16, DType.FLOAT16),
    _heads(256, DType.BFLOAT16, DType.BFLOAT16),
    # The context kernels take no 16-bit queries on an fp8 cache: the tests of prefill have no such pair.
    _heads(128, DType.BFLOAT16, DType.FLOAT8_E4M3, (Mode.DECODE, Mode.TARGET_VERIFY)),
)


def _generated() -> Any:
    from flashinfer.jit.attention import modules  # noqa: PLC0415 - it creates a CUDA context

    generate: Callable[[], Any] = modules.gen_trtllm_gen_fmha_module
    return generate()


_GENERATED = Module("the launcher of TRT-LLM's generated kernels", _generated)


def _noise(dtype: DType) -> NoiseModel:
    """Their source is not public."""
    del dtype
    return NoiseModel.unknown_kernel()


_ARCHS: Final = frozenset({Arch.BLACKWELL, Arch.BLACKWELL_ULTRA})
_CONTRACT: Final = Contract(lse=LseBase.TWO)

_MHA = GpuBackend(
    name="blackwell:trtllm_mha",
    archs=_ARCHS,
    capability=Capability(
        device=Device.CUDA,
        buckets=_MHA_BUCKETS,
        modes=tuple(Mode),
        graph_modes=SPECULATIVE,
        kv_scales=True,
        padding=True,
        query_views=tuple(QueryView),
        kv_views=tuple(KvView),
    ),
    contract=_CONTRACT,
    session=partial(BlackwellMhaSession, BLACKWELL),
    kernels=(BLACKWELL.decode, BLACKWELL.context),
    modules_of=lambda _: (_GENERATED,),
    theoretical=_noise,
)

_MLA = GpuBackend(
    name="blackwell:trtllm_mla",
    archs=_ARCHS,
    capability=Capability(
        device=Device.CUDA,
        buckets=(DEEPSEEK_V3,),
        modes=tuple(Mode),
        graph_modes=SPECULATIVE,
        kv_scales=True,
        padding=True,
        query_views=tuple(QueryView),
        kv_views=(KvView.SEPARATE, KvView.TOKEN_MAJOR),
    ),
    contract=_CONTRACT,
    session=partial(BlackwellMlaSession, BLACKWELL),
    kernels=(BLACKWELL.mla_decode, BLACKWELL.ragged, BLACKWELL.merge_state_in_place, BLACKWELL.fixup, GATHER_ROWS),
    modules_of=lambda _: (_GENERATED, MERGE_MODULE),
    theoretical=_noise,
    own=((SOURCE,),),
)

BLACKWELL_BACKENDS = (
    *with_revisions(_MHA, BlackwellMhaSession, BLACKWELL, MHA_REVISIONS),
    *with_revisions(_MLA, BlackwellMlaSession, BLACKWELL, MLA_REVISIONS),
)
