"""XQA, TRT-LLM's decode kernel, through its own entry point: decode, and drafts of equal or different lengths.

It takes a packed draft mask and a workspace beside the usual arguments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.arguments.edges import UNSAID_EDGES
from attnfuzz.kernels.cuda.visible import Arch, processors
from attnfuzz.kernels.gpu import argument_rules
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.flashinfer_op import flashinfer_op
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend, bucket
from attnfuzz.kernels.gpu.variants import as_served
from attnfuzz.kernels.interface.backend import Bench, Op, Output, Unsupported
from attnfuzz.kernels.interface.ops_table import WorkspaceBytes
from attnfuzz.kernels.interface.transfers import write
from attnfuzz.kernels.planning.paged_session import PagedSession
from attnfuzz.kernels.planning.plan import BatchMetadata, Row
from attnfuzz.kernels.planning.results import Results
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, KvView, Launch, Mask, Mode, QueryView, Step
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.masks import applies, mask_of
from attnfuzz.reference.noise import ROUNDOFF, NoiseModel

SEMAPHORES: Final = 8 << 20
"""Bytes at the start of the workspace, zero at first use (docstring of decode.xqa_batch_decode_with_kv_cache)."""

NO_MASKS: Final[Mapping[int, torch.Tensor]] = MappingProxyType({})

_WORD_BITS = 16
_ROWS_PER_BLOCK = 32
"""Query rows of a block in speculative decoding (mha.h, rowsPerBlock)."""
_MERGING_WARPS = 4
"""Warps of a block that merge partial outputs, each beginning with a different one (mha.cu, ctaShapeInWarps.x)."""


def _bucket(
    dtype: DType, page: int, head_dim: int, heads: tuple[tuple[int, int], ...], stride: int, **more: Any
) -> Bucket:
    return bucket(
        dtype,
        head_dim,
        heads=heads,
        page_sizes=(page,),
        layouts=(KvLayout.HND, KvLayout.NHD),
        sinks=(False, True),
        strides=(stride,),
        **more,
    )


UNIFORM: Final = (Mode.DECODE, Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND_V2)
BUCKETS: Final = (
    _bucket(DType.BFLOAT16, 16, 64, ((2, 1), (4, 2), (8, 4)), 4, modes=(*UNIFORM, Mode.DRAFT_EXTEND)),
    _bucket(DType.FLOAT16, 32, 64, ((1, 1), (3, 3)), 3, modes=UNIFORM),
    _bucket(DType.BFLOAT16, 64, 128, ((4, 1), (8, 2)), 4, modes=UNIFORM, windows=(0, 7, 100, 5000)),
)
"""XQA's modules are for one page size, head dim, group, and number of queries each. Ragged drafts need additional
modules."""
FP8_BUCKETS: Final = (_bucket(DType.FLOAT16, 32, 128, ((8, 1), (16, 2)), 4, kv_dtype=DType.FLOAT8_E4M3, modes=UNIFORM),)


def draft_mask(q_lens: Sequence[int], longest: int, among: Mapping[int, torch.Tensor] = NO_MASKS) -> torch.Tensor:
    """Make the mask among draft tokens: uint16 [sum of q_lens, ceil(longest / 32) * 2], a bit for each token.

    Bit j % 16 of word j / 16 in the row of token i is set if i sees token j of its request (FlashInfer, docstring of
    xqa.xqa: rows are packed one request after another, each as long as its own draft). It is causal but for the
    requests in `among`, which have masks bool [q_len, q_len].
    """
    words = -(-longest // (2 * _WORD_BITS)) * 2
    masks = []
    for request, q_len in enumerate(q_lens):
        seen = among.get(request)
        own = torch.ones(q_len, q_len).tril() if seen is None else seen
        masks += [sum(1 << token for token in row.nonzero().flatten().tolist()) for row in own]
    rows = [[mask >> _WORD_BITS * word & 0xFFFF for word in range(words)] for mask in masks]
    return torch.tensor(rows, dtype=torch.int32).reshape(len(rows), words).to(torch.uint16)


def among_drafts(case: Case, step: Step) -> Mapping[int, torch.Tensor]:
    """Draw the masks of requests among their own draft tokens; none if the step is causal. All see their prefix.

    A token without a key, of a request with fewer keys than queries, is not seen.
    """
    if not applies(case, step):
        return NO_MASKS
    found = {}
    for index, request in enumerate(step.requests):
        mask = mask_of(case, step, request)
        assert mask is not None
        own = mask[:, max(request.kv_len - request.q_len, 0) :]
        found[index] = torch.nn.functional.pad(own, (request.q_len - own.shape[1], 0))
    return found


def workspace_bytes(
    *, batch: int, q_len: int, q_heads: int, kv_heads: int, head_dim: int, processors: int
) -> WorkspaceBytes:
    """Return the semaphores, and a bound on the scratch of XQA's split KV on a GPU with this many multiprocessors.

    FlashInfer documents no size and checks none. mha.cu (launchMHAFlashInfer, kernel_mha_impl) splits a sequence into
    at most processors / (batch * kv_heads) parts. For each block of a part's rows (32 in speculative decoding) it keeps
    the output in the query's dtype, and the maximum and the sum of each row; outputs are aligned to their size. If
    there are fewer parts than warps that merge them, the others read behind the last part (mha.cu, the first
    loadBufAsync) without using the result.
    """
    rows = q_len * (q_heads // kv_heads)
    blocks = -(-rows // _ROWS_PER_BLOCK) if q_len > 1 else 1
    held = _ROWS_PER_BLOCK if q_len > 1 else rows
    sequences = max(1, batch * kv_heads)
    parts = max(1, processors // sequences) * sequences * blocks
    statistics = 2 * 4 * -(-held // 32) * 32
    output = 2 * held * head_dim
    behind = (1 + _MERGING_WARPS) * output
    return WorkspaceBytes(SEMAPHORES, parts * (statistics + output) + behind)


def modules_of(bucket: Bucket, *, ragged: bool) -> tuple[Module, ...]:
    """List a bucket's modules: for one query, for each number of draft tokens, and with `ragged` for ragged drafts."""
    q_lens = [(1, False)] + [(q_len, packed) for q_len in bucket.strides for packed in (False, True)[: 1 + ragged]]
    return tuple(
        _module(bucket, page, group, sliding=sliding, q_len=q_len, ragged=packed)
        for group in sorted({q_heads // kv_heads for q_heads, kv_heads in bucket.heads})
        for page in bucket.page_sizes
        for sliding in sorted({window >= 0 for window in bucket.windows})
        for q_len, packed in q_lens
    )


def _module(bucket: Bucket, page: int, group: int, *, sliding: bool, q_len: int, ragged: bool) -> Module:
    queries = f"{q_len} draft tokens{', ragged' if ragged else ''}" if q_len > 1 else "one query"
    window = ", window" if sliding else ""
    name = (
        f"XQA {bucket.dtype} on {bucket.kv_dtype}, pages of {page}, head dim {bucket.head_dim_qk}, "
        f"{group} heads per KV head{window}, {queries}"
    )
    dtype, kv_dtype = bucket.dtype.torch_dtype, bucket.kv_dtype.torch_dtype
    sizes = (page, bucket.head_dim_qk, group)
    return Module(name, partial(_spec, dtype, kv_dtype, sizes, sliding=sliding, q_len=q_len, ragged=ragged))


def _spec(
    dtype: torch.dtype, kv_dtype: torch.dtype, sizes: tuple[int, int, int], *, sliding: bool, q_len: int, ragged: bool
) -> object:
    from flashinfer.jit import xqa  # noqa: PLC0415 - it creates a CUDA context

    extra = {"use_ragged_q": True} if ragged and xqa.ragged_q_changes_build(q_len, sizes[2]) else {}
    return xqa.gen_xqa_module(dtype, kv_dtype, *sizes, sliding, dtype, q_len, **extra)


XQA_OP: Final = flashinfer_op(
    "flashinfer.decode", "xqa_batch_decode_with_kv_cache", frozenset({"out", "workspace_buffer"})
)


class XqaSession(PagedSession):
    """A session with one launch per step. Drafts of different lengths are packed, and so is their mask."""

    op: Op = XQA_OP

    def __init__(self, case: Case, bench: Bench) -> None:
        super().__init__(case, bench)
        self._masks: dict[tuple[Mode, int], torch.Tensor] = {}

    def _replay(self, step: Step, queries: torch.Tensor) -> Output:
        mask = self._masks.get((step.mode, step.padded_tokens))
        if mask is not None:
            longest = step.tokens_per_request
            drawn = draft_mask([longest] * step.padded_batch, longest, among_drafts(self._case, step))
            write(mask, drawn.view(mask.shape))
        return super()._replay(step, queries)

    def _attend(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> None:
        bench, geometry, longest = self._bench, self._case.geometry, step.tokens_per_request
        ragged = step.mode is Mode.DRAFT_EXTEND
        if ragged and longest == 1:
            raise Unsupported("ragged drafts of at most one token: xqa asserts q_seq_len > 1 with q_cu_seq_lens")
        q_lens = [request.q_len for request in step.requests] if ragged else [longest] * plan.batch
        mask = None
        if longest > 1:
            mask = bench.memory.copy("mask", draft_mask(q_lens, longest, among_drafts(self._case, step)))
            mask = mask if ragged else mask.unflatten(0, (plan.batch, longest))
            if step.launch is Launch.CAPTURE:
                self._masks[step.mode, step.padded_tokens] = mask
        need = workspace_bytes(
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


def fp8_arithmetic(dtype: DType) -> NoiseModel:
    """Return the noise of queries and weights rounded to e4m3, products summed in fp32 (mha_sm90.cu; xqa.xqa)."""
    del dtype
    roundoff = ROUNDOFF[torch.float8_e4m3fn]
    return msgspec.structs.replace(
        NoiseModel.unknown_kernel(),
        probabilities=roundoff,
        row_sum=roundoff,
        peak=roundoff,
        # Root mean square of errors uniform within a binade of e4m3, in the worst case of a query with one element.
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
            edges=UNSAID_EDGES,
            buckets=buckets,
            modes=(*UNIFORM, Mode.DRAFT_EXTEND),
            graph_modes=(Mode.DECODE, Mode.TARGET_VERIFY),
            kv_scales=True,
            padding=True,
            query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
            kv_views=tuple(KvView),
            pool_holes=True,
            # xqa/mhaUtils.cuh, KVCacheList: an array [batch][beam][2][pages].
            table_gaps=False,
            arguments=argument_rules.XQA,
            masks=(Mask.CAUSAL, Mask.FULL, Mask.TREE),
            # Docstring of xqa.xqa: "tree-structured drafts are not supported with sliding window".
            windowed_masks=(Mask.CAUSAL, Mask.FULL),
        ),
        contract=Contract(),
        session=XqaSession,
        kernels=(XQA_OP,),
        # Modules for ragged drafts, only if a bucket has that mode.
        modules_of=lambda bucket: modules_of(bucket, ragged=Mode.DRAFT_EXTEND in bucket.modes),
        # Weights are kept in the query's dtype, relative to a maximum that may belong to another warp's keys.
        theoretical=fp8_arithmetic if fp8 else lambda _: NoiseModel.unknown_kernel(),
    )


XQA: Final = _backend("xqa", BUCKETS)
XQA_AS_SERVED: Final = as_served(
    XQA, kv_scales=False, empty_kv=True, kv_shorter_than_q=False, query_views=(QueryView.CONTIGUOUS,)
)
XQA_FP8: Final = _backend("xqa_fp8", FP8_BUCKETS)
"""An e4m3 cache uses another kernel, which computes in fp8 with another error."""
