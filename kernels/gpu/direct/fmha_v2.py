"""trtllm_fmha_v2_prefill, TRT-LLM's context kernel on Hopper: on pages, and on packed keys in two layouts.

Each layout is a separate backend: only one returns softmax statistics, and each has a module that is slow to compile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.arguments.edges import UNSAID_EDGES
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import argument_rules, flashinfer_op
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend, OpenSession, bucket
from attnfuzz.kernels.gpu.variants import as_served
from attnfuzz.kernels.interface.backend import Bench, Op, Output
from attnfuzz.kernels.interface.ops_table import WorkspaceBytes
from attnfuzz.kernels.planning.lengths import longest, place_int32, running_sum
from attnfuzz.kernels.planning.paged_kv import FiniteTails
from attnfuzz.kernels.planning.paged_session import PagedSession
from attnfuzz.kernels.planning.plan import BatchMetadata, Row
from attnfuzz.kernels.planning.queries import cached_scales, draw_queries, packed_rows, place_queries, place_sinks
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.kernels.planning.workspace import SharedWorkspace
from attnfuzz.reference.arguments import ArgumentRule
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, KvView, Mask, Mode, QueryView, Step
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout
from attnfuzz.reference.noise import ROUNDOFF, NoiseModel

_MODULE: Final = "flashinfer.prefill"
_FUNCTION: Final = "trtllm_fmha_v2_prefill"
_WRITES: Final = frozenset({"out", "workspace_buffer"})

WORKSPACE: Final = WorkspaceBytes(semaphores=0, scratch=16)
"""The allocation of a 16-bit call: a tile counter, which the call clears itself (fmha_v2_run.cu, tile_id_counter_d;
templates/kernel_hopper_ws.jinja). A smaller workspace is refused."""


def prefill_with_lse(*, lse: torch.Tensor, **arguments: Any) -> None:
    """Call it for its softmax statistics, and write their LSE to `lse` [tokens, heads], in base e.

    They are the maximum of a row's logits and the sum of the exponentials relative to it (fmha_v2_run.cu,
    softmax_stats: "for (max, sum)"). FlashInfer allocates them in memory without guards.
    """
    _, statistics = flashinfer_op.call(_MODULE, _FUNCTION, save_softmax_stats=True, **arguments)
    maximum, total = statistics.unbind(dim=-1)
    torch.add(maximum, total.log(), out=lse)


FMHA_V2_OP: Final = flashinfer_op.flashinfer_op(_MODULE, _FUNCTION, _WRITES)
FMHA_V2_LSE_OP: Final = Op(f"{_FUNCTION}_with_lse", prefill_with_lse, _WRITES | {"lse"})


@dataclass(frozen=True)
class Packed:
    """A batch: query [tokens, q_heads, head_dim_qk] in guarded memory, int32 metadata, keys and values.

    seq_lens [batch]; cumulative lengths [batch + 1]; key [kv tokens, kv_heads, head_dim_qk] and value [kv tokens,
    kv_heads, head_dim_vo] are still on the CPU: each backend places them in its layout.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    seq_lens: torch.Tensor
    cum_seq_lens_q: torch.Tensor
    cum_seq_lens_kv: torch.Tensor
    max_q_len: int
    max_kv_len: int

    @property
    def batch(self) -> int:
        """Number of requests."""
        return self.seq_lens.shape[0]


def mask_mode(geometry: Geometry, mask: Mask) -> str:
    """Return the argument of that name: FlashInfer's own wrapper passes "padding" if it isn't causal (prefill.py).

    A window requires a causal mask (trtllm_fmha_v2_prefill).
    """
    if mask is Mask.FULL:
        return "padding"
    return "sliding_window" if geometry.window_left >= 0 else "causal"


def batch_arguments(batch: BatchMetadata | Packed, geometry: Geometry, mask: Mask = Mask.CAUSAL) -> dict[str, Any]:
    """Return the arguments for the lengths of requests, the visible keys, and modifiers of the logits."""
    return {
        "seq_lens": batch.seq_lens,
        "max_q_len": batch.max_q_len,
        # fmha_v2_run.cu asserts that the stated maximum of keys is not the smaller one.
        "max_kv_len": max(batch.max_kv_len, batch.max_q_len),
        "batch_size": batch.batch,
        "cum_seq_lens_q": batch.cum_seq_lens_q,
        "cum_seq_lens_kv": batch.cum_seq_lens_kv,
        "mask_mode": mask_mode(geometry, mask),
        "window_left": geometry.window_left,
        "logits_soft_cap_scale": geometry.soft_cap or None,
    }


def arguments_on_pages(
    plan: BatchMetadata, geometry: Geometry, query: torch.Tensor, cache: Any, mask: Mask = Mask.CAUSAL
) -> dict[str, Any]:
    """Return the arguments for queries [tokens, q_heads, head_dim_qk] on a paired pool."""
    return {
        "qkv": (query, cache),
        "input_layout": paged_layout(geometry.kv_layout),
        "block_tables": plan.block_tables,
        **batch_arguments(plan, geometry, mask),
    }


def paged_layout(layout: KvLayout) -> str:
    """Return the input layout of a paired pool."""
    return f"Q_PAGED_KV_{layout.value}"


def noise(dtype: DType) -> NoiseModel:
    """Return the noise of an unknown kernel that rounds `bmm2_scale` to the queries' dtype (fmha_v2_run.cu)."""
    return msgspec.structs.replace(NoiseModel.unknown_kernel(), bias=ROUNDOFF[dtype.torch_dtype])


def modules_of(bucket: Bucket, layouts: tuple[str, ...]) -> tuple[Module, ...]:
    """List a module for each input layout, such as Q_PAGED_KV_HND; each covers all head dims."""
    dtype = bucket.dtype
    return tuple(Module(f"fmha_v2 {layout} {dtype}", partial(_spec, layout, dtype.torch_dtype)) for layout in layouts)


def _spec(layout: str, dtype: torch.dtype) -> object:
    from flashinfer.jit.attention import modules  # noqa: PLC0415 - it creates a CUDA context

    return modules.gen_fmha_v2_module(layout, dtype)


class FmhaV2Session(PagedSession):
    """A session with one launch per step on a paired pool."""

    op: Op = FMHA_V2_OP

    def _attend(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> None:
        rows = plan.batch * step.tokens_per_request if step.mode.uniform else step.tokens
        self._bench.launcher.launch(
            self.op,
            workspace_buffer=self._workspace.take(WORKSPACE),
            out=results.out[:rows],
            sinks=self._sinks,
            **arguments_on_pages(plan, self._case.geometry, query[:rows], self._kv.cache, self._case.mask),
            **self._scales,
        )

    def _output(self, step: Step, planned: Sequence[Row], query: torch.Tensor, results: Results) -> Output:
        return replace(super()._output(step, planned, query, results), lse=None)


class FmhaV2AsServed(FmhaV2Session):
    """A session on a pool whose pages held other tokens before: the rest of a request's last page is not NaN."""

    kv_type = FiniteTails


class PackedFmhaV2Session:
    """A session with one launch per step on separate keys and values, SEPARATE_Q_K_V.

    Each step is planned before padding, and the rows outside its plan are cleared.
    """

    op: Op = FMHA_V2_OP
    layout = "SEPARATE_Q_K_V"
    returns_lse = False

    def __init__(self, case: Case, bench: Bench) -> None:
        self._case, self._bench = case, bench
        self._tokens = SlotTokens.cached(case, device=bench.device)
        self._sinks = place_sinks(case, bench)
        self._workspace = SharedWorkspace(case, bench)
        self._scales = cached_scales(case)

    def forward(self, index: int) -> Output:
        """Run one step."""
        case, bench, step = self._case, self._bench, self._case.steps[index]
        query = place_queries(case, bench, draw_queries(case, index, step.padded_tokens, case.geometry.head_dim_qk))
        results = Results.place(case, bench, step.padded_tokens)
        self._attend(self._packed(step, query[: step.tokens]), results[: step.tokens])
        results[step.tokens :].clear()
        return Output(
            out=results.out,
            lse=results.lse if self.returns_lse else None,
            attended=self._tokens.attended(step, query, packed_rows(step)),
            sinks=self._sinks,
            **self._scales,
        )

    def _packed(self, step: Step, query: torch.Tensor) -> Packed:
        bench, slack = self._bench, self._case.max_len_slack
        q_lens, kv_lens = [request.q_len for request in step.requests], [request.kv_len for request in step.requests]
        key, value = self._tokens.packed(step)
        return Packed(
            query=query,
            key=key,
            value=value,
            seq_lens=place_int32(bench, "seq_lens", kv_lens),
            cum_seq_lens_q=place_int32(bench, "cum_seq_lens_q", running_sum(q_lens)),
            cum_seq_lens_kv=place_int32(bench, "cum_seq_lens_kv", running_sum(kv_lens)),
            max_q_len=longest(q_lens) + slack,
            max_kv_len=longest(kv_lens) + slack,
        )

    def _tensors(self, packed: Packed) -> tuple[torch.Tensor, ...]:
        key = self._bench.memory.copy("key", packed.key)
        return packed.query, key, self._bench.memory.copy("value", packed.value)

    def _attend(self, packed: Packed, results: Results) -> None:
        self._bench.launcher.launch(
            self.op,
            qkv=self._tensors(packed),
            input_layout=self.layout,
            workspace_buffer=self._workspace.take(WORKSPACE),
            out=results.out,
            **self._extras(results),
            **batch_arguments(packed, self._case.geometry, self._case.mask),
            **self._scales,
        )

    def _extras(self, results: Results) -> dict[str, Any]:
        return {"sinks": self._sinks}


class ContiguousFmhaV2Session(PackedFmhaV2Session):
    """A session with one launch per step on keys and values in one tensor, CONTIGUOUS_Q_KV, with the LSE."""

    op: Op = FMHA_V2_LSE_OP
    layout = "CONTIGUOUS_Q_KV"
    returns_lse = True

    def _tensors(self, packed: Packed) -> tuple[torch.Tensor, ...]:
        return packed.query, self._bench.memory.copy("key_value", torch.stack((packed.key, packed.value), dim=1))

    def _extras(self, results: Results) -> dict[str, Any]:
        return {"lse": results.lse}


_bucket: Final = partial(bucket, DType.BFLOAT16, heads=((1, 1), (4, 2), (8, 1), (3, 3)))
_WINDOWS: Final = (-1, 0, 7, 100, 5000)
_NO_PAGES: Final[dict[str, Any]] = {"page_sizes": (16,), "layouts": (KvLayout.HND,)}
"""Placeholders for kernels without pages: a geometry needs some."""


def _paged(layout: KvLayout) -> tuple[Bucket, ...]:
    shared: dict[str, Any] = {"layouts": (layout,), "windows": _WINDOWS, "sinks": (False, True)}
    return tuple(_bucket(dim, page_sizes=(16, 32, 128), soft_caps=(0.0, 20.0), **shared) for dim in (64, 128))


_PACKED: Final = tuple(_bucket(dim, windows=_WINDOWS, sinks=(False, True), **_NO_PAGES) for dim in (64, 128))
_CONTIGUOUS: Final = tuple(_bucket(dim, windows=_WINDOWS, **_NO_PAGES) for dim in (64, 128))


def _backend(
    name: str,
    session: OpenSession,
    op: Op,
    layouts: tuple[str, ...],
    capability: Capability,
    lse: LseBase | None = None,
) -> GpuBackend:
    return GpuBackend(
        name=name,
        archs=frozenset({Arch.HOPPER}),
        capability=capability,
        contract=Contract(lse=lse),
        session=session,
        kernels=(op,),
        modules_of=lambda bucket: modules_of(bucket, layouts),
        theoretical=noise,
    )


def _capability(buckets: tuple[Bucket, ...], kv_view: KvView, arguments: tuple[ArgumentRule, ...]) -> Capability:
    return Capability(
        device=Device.CUDA,
        edges=UNSAID_EDGES,
        buckets=buckets,
        modes=Mode.of_kernels(),
        kv_scales=True,
        padding=True,
        query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
        kv_views=(kv_view,),
        # fmha/paged_kv_cache.h: shape [B, W, 2, M].
        table_gaps=False,
        arguments=arguments,
        masks=(Mask.CAUSAL, Mask.FULL),
    )


def _on_pages(name: str, layout: KvLayout) -> GpuBackend:
    # Separate pools would have to lie in one allocation (docstring), which is a paired pool.
    capability = _capability(_paged(layout), KvView.PAIRED, argument_rules.FMHA_V2_PAGED)
    return _backend(name, FmhaV2Session, FMHA_V2_OP, (paged_layout(layout),), capability)


FMHA_V2: Final = _on_pages("fmha_v2", KvLayout.HND)
FMHA_V2_NHD: Final = _on_pages("fmha_v2_nhd", KvLayout.NHD)
FMHA_V2_AS_SERVED: Final = as_served(
    FMHA_V2,
    FmhaV2AsServed,
    kv_scales=False,
    empty_kv=False,
    kv_shorter_than_q=False,
    query_views=(QueryView.CONTIGUOUS,),
)
FMHA_V2_PACKED: Final = _backend(
    "fmha_v2_packed",
    PackedFmhaV2Session,
    FMHA_V2_OP,
    ("SEPARATE_Q_K_V",),
    _capability(_PACKED, KvView.SEPARATE, argument_rules.FMHA_V2),
)
FMHA_V2_LSE: Final = _backend(
    "fmha_v2_lse",
    ContiguousFmhaV2Session,
    FMHA_V2_LSE_OP,
    ("CONTIGUOUS_Q_KV",),
    _capability(_CONTIGUOUS, KvView.SEPARATE, argument_rules.FMHA_V2),
    LseBase.E,
)
