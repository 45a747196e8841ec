"""trtllm_fmha_v2_prefill, TRT-LLM's context kernel on Hopper: its op, modules, workspace, and what its error is."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.backend import Op
from attnfuzz.kernels.gpu import flashinfer_op
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.ops_table import WorkspaceBytes
from attnfuzz.kernels.plan import BatchMetadata
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout
from attnfuzz.reference.noise import ROUNDOFF, NoiseModel

_MODULE: Final = "flashinfer.prefill"
_FUNCTION: Final = "trtllm_fmha_v2_prefill"
_WRITES: Final = frozenset({"out", "workspace_buffer"})

WORKSPACE: Final = WorkspaceBytes(semaphores=0, scratch=16)
"""What a 16-bit call allocates: a tile counter, which it clears itself (fmha_v2_run.cu, tile_id_counter_d; templates/
kernel_hopper_ws.jinja). A smaller workspace is refused."""


def prefill_with_lse(*, lse: torch.Tensor, **arguments: Any) -> None:
    """Call it for its softmax statistics, and write the LSE that they stand for to `lse` [tokens, heads], in base e.

    They are the maximum of a row's logits and the sum of the exponentials relative to it (fmha_v2_run.cu,
    softmax_stats: "for (max, sum)"). FlashInfer allocates them, where nothing guards them.
    """
    _, statistics = flashinfer_op.call(_MODULE, _FUNCTION, save_softmax_stats=True, **arguments)
    maximum, total = statistics.unbind(dim=-1)
    torch.add(maximum, total.log(), out=lse)


FMHA_V2_OP: Final = flashinfer_op.flashinfer_op(_MODULE, _FUNCTION, _WRITES)
FMHA_V2_LSE_OP: Final = Op(f"{_FUNCTION}_with_lse", prefill_with_lse, _WRITES | {"lse"})


@dataclass(frozen=True)
class Packed:
    """A batch: query [tokens, q_heads, head_dim_qk] in guarded memory, int32 metadata, and what it attends to.

    seq_lens [batch]; cumulative lengths [batch + 1]; key [kv tokens, kv_heads, head_dim_qk] and value [kv tokens,
    kv_heads, head_dim_vo] are still on the CPU, for a backend places them as its layout wants.
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
        """Requests."""
        return self.seq_lens.shape[0]


def told(batch: BatchMetadata | Packed, geometry: Geometry) -> dict[str, Any]:
    """The arguments that say how long requests are, which keys a query sees, and what alters its logits."""
    return {
        "seq_lens": batch.seq_lens,
        "max_q_len": batch.max_q_len,
        # fmha_v2_run.cu asserts that the stated maximum of keys is not the smaller one.
        "max_kv_len": max(batch.max_kv_len, batch.max_q_len),
        "batch_size": batch.batch,
        "cum_seq_lens_q": batch.cum_seq_lens_q,
        "cum_seq_lens_kv": batch.cum_seq_lens_kv,
        "mask_mode": "sliding_window" if geometry.window_left >= 0 else "causal",
        "window_left": geometry.window_left,
        "logits_soft_cap_scale": geometry.soft_cap or None,
    }


def told_on_pages(plan: BatchMetadata, geometry: Geometry, query: torch.Tensor, cache: Any) -> dict[str, Any]:
    """Those, for queries [tokens, q_heads, head_dim_qk] on a paired pool."""
    return {
        "qkv": (query, cache),
        "input_layout": paged_layout(geometry.kv_layout),
        "block_tables": plan.block_tables,
        **told(plan, geometry),
    }


def paged_layout(layout: KvLayout) -> str:
    """The input layout of a paired pool."""
    return f"Q_PAGED_KV_{layout.value}"


def noise(dtype: DType) -> NoiseModel:
    """Nothing is said of its weights; `bmm2_scale` is rounded to the queries' dtype (fmha_v2_run.cu, set_params)."""
    return msgspec.structs.replace(NoiseModel.unknown_kernel(), bias=ROUNDOFF[dtype.torch_dtype])


def modules_of(bucket: Bucket, layouts: tuple[str, ...]) -> tuple[Module, ...]:
    """A module for each input layout, like Q_PAGED_KV_HND: it has all head dims."""
    dtype = bucket.dtype
    return tuple(Module(f"fmha_v2 {layout} {dtype}", partial(_spec, layout, dtype.torch_dtype)) for layout in layouts)


def _spec(layout: str, dtype: torch.dtype) -> object:
    from flashinfer.jit.attention import modules  # noqa: PLC0415 - it creates a CUDA context

    return modules.gen_fmha_v2_module(layout, dtype)
