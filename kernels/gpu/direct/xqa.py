"""XQA, TRT-LLM's decode kernel, by its own entry point: decode, and drafts of one length or of several."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec
import torch

from attnfuzz.kernels.backend import Op, Output, Unsupported
from attnfuzz.kernels.gpu import xqa
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.flashinfer_op import flashinfer_op
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.variants import as_served
from attnfuzz.kernels.gpu.visible import Arch, processors
from attnfuzz.kernels.paged_session import PagedSession
from attnfuzz.kernels.plan import BatchMetadata, Row
from attnfuzz.kernels.results import Results
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import KvView, Mode, QueryView, Step
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import ROUNDOFF, NoiseModel

XQA_OP: Final = flashinfer_op(
    "flashinfer.decode", "xqa_batch_decode_with_kv_cache", frozenset({"out", "workspace_buffer"})
)


class XqaSession(PagedSession):
    """One launch for each step. Drafts of several lengths are packed, and their mask with them."""

    op: Op = XQA_OP

    def _attend(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> None:
        bench, geometry, longest = self._bench, self._case.geometry, step.tokens_per_request
        ragged = step.mode is Mode.DRAFT_EXTEND
        if ragged and longest == 1:
            raise Unsupported("ragged drafts of at most one token: xqa asserts q_seq_len > 1 with q_cu_seq_lens")
        q_lens = [request.q_len for request in step.requests] if ragged else [longest] * plan.batch
        mask = None
        if longest > 1:
            mask = bench.memory.copy("mask", xqa.draft_mask(q_lens, longest))
            mask = mask if ragged else mask.unflatten(0, (plan.batch, longest))
        need = xqa.workspace_bytes(
            batch=plan.batch,
            q_len=longest,
            q_heads=geometry.q_heads,
            kv_heads=geometry.kv_heads,
            head_dim=geometry.head_dim_qk,
            processors=processors(bench.device),
        )
        rows = sum(q_lens)
        bench.launcher.launch(
            self.op,
            query=query[:rows],
            kv_cache=self._kv.cache,
            workspace_buffer=self._workspace.take(need),
            block_tables=plan.block_tables,
            seq_lens=plan.seq_lens.view(torch.uint32),
            max_seq_len=plan.max_kv_len,
            window_left=geometry.window_left,
            out=results.out[:rows],
            sinks=self._sinks,
            kv_layout=geometry.kv_layout.value,
            q_len_per_req=longest,
            mask=mask,
            q_cu_seq_lens=plan.cum_seq_lens_q if ragged else None,
            **self._scales,
        )

    def _output(self, step: Step, planned: Sequence[Row], query: torch.Tensor, results: Results) -> Output:
        # Split KV keeps partial outputs in the query's dtype, and merges them (mha.cu, toFp16 before mergeAndSave).
        return replace(super()._output(step, planned, query, results), lse=None, roundings=2)


def modules_of(bucket: Bucket) -> tuple[Module, ...]:
    """A bucket's modules, with those for ragged drafts where it has that mode."""
    return xqa.modules_of(bucket, ragged=Mode.DRAFT_EXTEND in bucket.modes)


def fp8_arithmetic(dtype: DType) -> NoiseModel:
    """Queries and weights are rounded to e4m3, the products summed in fp32 (mha_sm90.cu; docstring of xqa.xqa)."""
    del dtype
    roundoff = ROUNDOFF[torch.float8_e4m3fn]
    return msgspec.structs.replace(
        NoiseModel.unknown_kernel(),
        probabilities=roundoff,
        row_sum=roundoff,
        peak=roundoff,
        # The root mean square of errors that are even within a binade of e4m3, where all of a query is one element.
        logits=roundoff / 2,
        underflow=2.0**-10 / 448,
    )


def _backend(name: str, buckets: tuple[Bucket, ...]) -> GpuBackend:
    fp8 = all(bucket.kv_dtype is DType.FLOAT8_E4M3 for bucket in buckets)
    return GpuBackend(
        name=name,
        archs=frozenset({Arch.HOPPER}),
        capability=Capability(
            device=Device.CUDA,
            buckets=buckets,
            modes=(*xqa.UNIFORM, Mode.DRAFT_EXTEND),
            graph_modes=(Mode.DECODE, Mode.TARGET_VERIFY),
            kv_scales=True,
            padding=True,
            query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
            kv_views=tuple(KvView),
            # xqa/mhaUtils.cuh, KVCacheList: an array [batch][beam][2][pages].
            table_gaps=False,
        ),
        contract=Contract(),
        session=XqaSession,
        kernels=(XQA_OP,),
        modules_of=modules_of,
        # Weights are kept in the query's dtype, relative to a maximum that may belong to another warp's keys.
        theoretical=fp8_arithmetic if fp8 else lambda _: NoiseModel.unknown_kernel(),
    )


XQA: Final = _backend("xqa", xqa.BUCKETS)
XQA_AS_SERVED: Final = as_served(XQA, kv_scales=False, kv_shorter_than_q=False, query_views=(QueryView.CONTIGUOUS,))
XQA_FP8: Final = _backend("xqa_fp8", xqa.FP8_BUCKETS)
"""On an e4m3 cache it is another kernel, with another error: it computes in fp8."""
