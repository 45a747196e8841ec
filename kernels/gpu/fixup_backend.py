"""The fixup kernel as a backend of its own: plain attention that leaves the rows of empty requests unwritten, and it.

Attention is torch's on the host, a request at a time in fp64 and never for a request without keys, as ragged kernels do
(SGLang PR #22688). What those rows hold in the end is the kernel's doing alone, and so is whatever it wrote elsewhere.
"""

import math
from itertools import pairwise

import torch

from attnfuzz.kernels.backend import Bench, Fill, Output
from attnfuzz.kernels.gpu.arch import Arch
from attnfuzz.kernels.gpu.fixup import FIXUP, SOURCE
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.plain_attention import attend_into
from attnfuzz.kernels.lengths import longest, place_int32, running_sum
from attnfuzz.kernels.queries import draw_queries, packed_rows, query_strides
from attnfuzz.kernels.slot_tokens import SlotTokens
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, QueryView
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.device import Device
from attnfuzz.reference.noise import NoiseModel


class FixupSession:
    """One launch of the kernel for each step, over out and lse that are strided as the case's queries are."""

    def __init__(self, case: Case, bench: Bench) -> None:
        self._case, self._bench = case, bench
        self._tokens = SlotTokens.cached(case)
        self._scale = case.scales.softmax / math.sqrt(case.geometry.head_dim_qk)

    def forward(self, index: int) -> Output:
        """Run one step."""
        case, memory, step = self._case, self._bench.memory, self._case.steps[index]
        geometry, rows = case.geometry, step.padded_tokens
        query = draw_queries(case, index, rows, geometry.head_dim_qk)
        shape = (rows, geometry.q_heads, geometry.head_dim_vo)
        stride = query_strides(case, geometry.q_heads, geometry.head_dim_vo)
        out = memory.tensor("out", shape, geometry.dtype.torch_dtype, stride=stride, fill=Fill.OUTPUT)
        lse = memory.tensor("lse", shape[:2], torch.float32, fill=Fill.OUTPUT)
        attended = self._tokens.attended(step, query, packed_rows(step))
        # Padding is one more request without keys.
        q_lens = [*(request.q_len for request in step.requests), rows - step.tokens]
        for entry, (first, last) in zip(attended, pairwise(running_sum(q_lens)), strict=False):
            if len(entry.key):
                attend_into(out[first:last], lse[first:last], entry, self._scale)
        self._bench.launcher.launch(
            FIXUP,
            out=out,
            lse=lse,
            kv_lens=place_int32(self._bench, "kv_lens", [*(request.kv_len for request in step.requests), 0]),
            cum_seq_lens=place_int32(self._bench, "cum_seq_lens", running_sum(q_lens)),
            max_seq_len=longest(q_lens) + case.max_len_slack,
        )
        return Output(out=out, lse=lse, attended=attended, bmm1_scale=self._scale, bmm2_scale=1.0)


CUDA_FIXUP = GpuBackend(
    name="cuda_fixup",
    archs=frozenset(Arch),
    capability=Capability(
        device=Device.CUDA,
        modes=tuple(Mode),
        unequal_head_dims=True,
        padding=True,
        query_views=tuple(QueryView),
    ),
    contract=Contract(lse=LseBase.TWO),
    session=FixupSession,
    kernels=(FIXUP,),
    modules_of=lambda _: (),
    # The kernel computes nothing, and fp64 attention errs less than fp32 does.
    theoretical=lambda _: NoiseModel.fp32_arithmetic(),
    needs=(),
    own=((SOURCE,),),
)
