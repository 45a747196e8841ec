"""cuDNN's attention through FlashInfer: decode and prefill on pages."""

from functools import partial
from itertools import pairwise
from typing import Any, Final

import torch

from attnfuzz.kernels.arguments.edges import UNSAID_EDGES
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import flashinfer_op
from attnfuzz.kernels.gpu import function_argument_rules as rules
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend, OpenSession, bucket
from attnfuzz.kernels.gpu.wrappers.options import in_base_2
from attnfuzz.kernels.interface.backend import Op, Unsupported
from attnfuzz.kernels.interface.ops_table import WorkspaceBytes
from attnfuzz.kernels.planning.lengths import place_int32
from attnfuzz.kernels.planning.paged_session import PagedSession
from attnfuzz.kernels.planning.plan import BatchMetadata
from attnfuzz.kernels.planning.results import Results
from attnfuzz.reference.arguments import ArgumentForm
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import KvView, Mask, Mode, QueryView, Step
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel

_WORKSPACE: Final = WorkspaceBytes(semaphores=0, scratch=128 << 20)
"""FlashInfer: "128 MB is sufficient for typical" workloads (docstrings of both functions)."""


_AVOIDED: Final = "cuDNN < 9.27 mis-stores"
"""The beginning of a ValueError since 0.7.4: FlashInfer refuses a packed LSE that this cuDNN would store wrongly."""


def _call(name: str, /, **arguments: Any) -> Any:
    """Call it. cuDNN reports a missing engine when it builds the graph, before any launch."""
    try:
        return flashinfer_op.call("flashinfer.cudnn", name, **arguments)
    except Exception as error:
        words = " ".join(str(error).split())
        if type(error).__name__ == "cudnnGraphNotSupportedError":
            raise Unsupported(f"cuDNN has no engine: {words[:200]}") from error
        if words.startswith(_AVOIDED):
            raise Unsupported(f"FlashInfer refuses the call: {words[:200]}") from error
        raise


def _op(name: str) -> Op:
    writes = frozenset({"out", "lse", "workspace_buffer"})
    return Op(name, partial(_call, name), writes, "flashinfer.cudnn")


DECODE_OP: Final = _op("cudnn_batch_decode_with_kv_cache")
PREFILL_OP: Final = _op("cudnn_batch_prefill_with_kv_cache")


class _CudnnSession(PagedSession):
    def _shared(self, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        """Return the arguments common to both functions. Lengths have four axes, like cuDNN's tensors."""
        cache = self._kv.cache
        key, value = cache.unbind(dim=1) if isinstance(cache, torch.Tensor) else cache
        return {
            "q": query,
            "k_cache": key,
            "v_cache": value,
            "scale": self._scales["bmm1_scale"],
            "workspace_buffer": self._workspace.take(_WORKSPACE),
            # cuDNN takes no wider table: "block table size must equal ceil(s_kv/block_size)".
            "max_sequence_kv": plan.block_tables.shape[1] * self._case.geometry.page_size,
            "actual_seq_lens_kv": plan.seq_lens.reshape(-1, 1, 1, 1),
            "block_tables": plan.block_tables,
            "return_lse": True,
            "out": results.out,
            "lse": results.lse,
        }


class CudnnDecodeSession(_CudnnSession):
    """A session with one launch per step of equal query lengths."""

    op: Op = DECODE_OP

    def _attend(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> None:
        rows = plan.batch * step.tokens_per_request
        self._bench.launcher.launch(
            self.op,
            q_len_per_req=step.tokens_per_request,
            window_left=self._case.geometry.window_left,
            sinks=self._sinks,
            **self._shared(plan, query[:rows], results[:rows]),
        )


class CudnnPrefillSession(_CudnnSession):
    """A session with one ragged launch per step. Offsets are in elements, the default, if the case does not ask."""

    op: Op = PREFILL_OP

    def _attend(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> None:
        rows = plan.batch * step.tokens_per_request if step.mode.uniform else step.tokens
        bench, geometry = self._bench, self._case.geometry
        first_rows = plan.cum_seq_lens_q.tolist()
        forms, dtype = self._case.arguments, geometry.dtype.torch_dtype
        in_tokens = ArgumentForm.OFFSETS_IN_TOKENS in forms

        def offsets(name: str, row: int) -> torch.Tensor:
            return place_int32(bench, name, [first * (1 if in_tokens else row) for first in first_rows])

        q_lens = [last - first for first, last in pairwise(first_rows)]
        bench.launcher.launch(
            self.op,
            max_token_per_sequence=plan.max_q_len,
            actual_seq_lens_q=place_int32(bench, "actual_seq_lens_q", q_lens).reshape(-1, 1, 1, 1),
            causal=self._case.mask is Mask.CAUSAL,
            # Since 0.7.4. None is no window; an older release takes None for an argument that it lacks.
            window_left=geometry.window_left if geometry.window_left >= 0 else None,
            sinks=self._sinks,
            batch_offsets_q=offsets("batch_offsets_q", geometry.q_heads * geometry.head_dim_qk),
            batch_offsets_o=offsets("batch_offsets_o", geometry.q_heads * geometry.head_dim_vo),
            batch_offsets_stats=offsets("batch_offsets_stats", geometry.q_heads),
            **({"batch_offsets_units": "tokens"} if in_tokens else {}),
            **({"o_data_type": dtype} if ArgumentForm.OUT_DTYPE_GIVEN in forms else {}),
            **({"lse_base": "ln"} if ArgumentForm.LSE_BASE_E in forms else {}),
            **self._shared(plan, query[:rows], results[:rows]),
        )
        in_base_2(self._case, results.lse[:rows])


_bucket: Final = partial(bucket, heads=((1, 1), (4, 2)), page_sizes=(16, 64), layouts=(KvLayout.HND,))

# docs.nvidia.com/cudnn, operations/Attention: SM80 or newer; its table lists paged caches on Ampere, Ada, Hopper and
# Blackwell (B200, B300).
_ARCHS: Final = frozenset({Arch.AMPERE, Arch.ADA, Arch.HOPPER, Arch.BLACKWELL, Arch.BLACKWELL_ULTRA})


def _backend(name: str, session: OpenSession, op: Op, capability: Capability) -> GpuBackend:
    return GpuBackend(
        name=name,
        archs=_ARCHS,
        capability=capability,
        contract=Contract(lse=LseBase.TWO),
        session=session,
        kernels=(op,),
        theoretical=lambda _: NoiseModel.unknown_kernel(),
        needs=("flashinfer", "cudnn"),
    )


CUDNN_DECODE: Final = _backend(
    "cudnn_decode",
    CudnnDecodeSession,
    DECODE_OP,
    Capability(
        device=Device.CUDA,
        edges=UNSAID_EDGES,
        buckets=(
            _bucket(DType.BFLOAT16, 64, windows=(-1, 7, 100)),
            _bucket(DType.FLOAT16, 128, windows=(-1, 7, 100)),
            # Docstring: for sinks of a single query "the backend engine raises a not-supported error at graph build".
            _bucket(
                DType.BFLOAT16, 128, windows=(-1, 7), sinks=(True,), modes=(Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND_V2)
            ),
        ),
        modes=(Mode.DECODE, Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND_V2),
        padding=True,
        # Docstring: "Every request needs kv_len >= q_len_per_req."
        empty_kv=False,
        kv_shorter_than_q=False,
        query_views=tuple(QueryView),
        kv_views=tuple(KvView),
        pool_holes=True,
        arguments=rules.CUDNN_DECODE,
    ),
)
CUDNN_PREFILL: Final = _backend(
    "cudnn_prefill",
    CudnnPrefillSession,
    PREFILL_OP,
    Capability(
        device=Device.CUDA,
        edges=UNSAID_EDGES,
        # Docstring: head_dim_qk must be 128 or 192, head_dim_vo 128. Windows and sinks: since 0.7.4.
        buckets=(
            _bucket(DType.BFLOAT16, 128),
            _bucket(DType.FLOAT16, 128),
            _bucket(DType.BFLOAT16, 128, windows=(0, 7, 100)),
            _bucket(DType.BFLOAT16, 128, windows=(-1, 7), sinks=(True,)),
        ),
        modes=Mode.of_kernels(),
        padding=True,
        kv_views=tuple(KvView),
        pool_holes=True,
        masks=(Mask.CAUSAL, Mask.FULL),
        # Docstring: keys before p - window_left are masked, "causality independently masks keys after p".
        windowed_masks=(Mask.CAUSAL, Mask.FULL),
        arguments=rules.CUDNN_PREFILL,
    ),
)
