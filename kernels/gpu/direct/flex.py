"""torch's flex_attention on the GPU, uncompiled: its masks and grouped heads, on torch's plain operations.

Compiling it takes longer than a worker that may die can wait for. A step is one call: requests lie one after another,
and the mask keeps them apart, which is how its authors have it attend to ragged batches ("document masking", PyTorch
blog, "FlexAttention: The Flexibility of PyTorch with the Performance of FlashAttention", 2024).
"""

import math
import warnings
from typing import Any, Final

import torch

from attnfuzz.kernels.backend import Bench, Op, Output
from attnfuzz.kernels.gpu.arch import Arch
from attnfuzz.kernels.gpu.direct.sdpa import dense_buckets
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.lengths import place_int32
from attnfuzz.kernels.queries import draw_queries, packed_rows, place_queries
from attnfuzz.kernels.results import place_out
from attnfuzz.kernels.slot_tokens import SlotTokens
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, QueryView, Step
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel

_NOBODY: Final = -1


def attend_flexibly(
    *,
    out: torch.Tensor,
    request_of_query: torch.Tensor,
    own_key: torch.Tensor,
    request_of_key: torch.Tensor,
    position: torch.Tensor,
    window_left: int,
    **arguments: Any,
) -> None:
    """Write flex_attention to `out` [1, heads, rows, dim]: causal, within requests.

    int32 [rows]: the request of each query, -1 for padding, and the position of its own key in that request. int32
    [keys]: the request of each key, and its position there.
    """
    from torch.nn.attention import flex_attention as flex  # noqa: PLC0415 - it imports the compiler

    def seen(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        del batch, head
        own, at = own_key[query], position[key]
        causal = torch.logical_and(request_of_query[query] == request_of_key[key], at <= own)
        return torch.logical_and(causal, at >= own - window_left) if window_left >= 0 else causal

    rows, keys = arguments["query"].shape[2], arguments["key"].shape[2]
    mask = flex.create_block_mask(seen, None, None, rows, keys, device=str(out.device))
    # Otherwise it is traced anew for every shape, which takes seconds.
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*without torch.compile")
        out.copy_(flex.flex_attention(**arguments, block_mask=mask))


FLEX: Final = Op("flex_attention", attend_flexibly, frozenset({"out"}), "torch.nn.attention.flex_attention")


class FlexSession:
    """One call per step; K and V of all requests lie one after another. Without any key there is no call."""

    def __init__(self, case: Case, bench: Bench) -> None:
        self._case, self._bench = case, bench
        self._tokens = SlotTokens.cached(case, device=bench.device)
        self._scale = case.scales.softmax / math.sqrt(case.geometry.head_dim_qk)

    def forward(self, index: int) -> Output:
        """Run one step."""
        step, geometry, memory = self._case.steps[index], self._case.geometry, self._bench.memory
        drawn = draw_queries(self._case, index, step.padded_tokens, geometry.head_dim_qk)
        query = place_queries(self._case, self._bench, drawn)
        out = place_out(self._case, self._bench, step.padded_tokens, geometry.head_dim_vo)
        attended = self._tokens.attended(step, query, packed_rows(step))
        if any(request.kv_len for request in step.requests) and step.padded_tokens:
            key, value = self._tokens.packed(step)
            self._attend(step, query, memory.copy("key", key), memory.copy("value", value), out)
        else:
            out.zero_()
        # cuBLASLt may split the keys (split-K), and adds up parts that are rounded to 16 bits: splitKreduce_kernel, as
        # torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction and its like for fp16 allow by default.
        return Output(out=out, lse=None, attended=attended, bmm1_scale=self._scale, bmm2_scale=1.0, roundings=2)

    def _attend(
        self, step: Step, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor
    ) -> None:
        query, key, value, out = (tokens.transpose(0, 1).unsqueeze(0) for tokens in (query, key, value, out))
        self._bench.launcher.launch(
            FLEX,
            out=out,
            query=query,
            key=key,
            value=value,
            scale=self._scale,
            enable_gqa=self._case.geometry.group > 1,
            window_left=self._case.geometry.window_left,
            **self._masked(step),
        )

    def _masked(self, step: Step) -> dict[str, torch.Tensor]:
        """The arguments that say which keys a query sees."""
        padding = [_NOBODY] * (step.padded_tokens - step.tokens)
        queries = [(b, r.kv_len - r.q_len + i) for b, r in enumerate(step.requests) for i in range(r.q_len)]
        keys = [(b, i) for b, r in enumerate(step.requests) for i in range(r.kv_len)]
        columns = {
            "request_of_query": [request for request, _ in queries] + padding,
            "own_key": [own for _, own in queries] + padding,
            "request_of_key": [request for request, _ in keys],
            "position": [position for _, position in keys],
        }
        return {name: place_int32(self._bench, name, values) for name, values in columns.items()}


FLEX_ATTENTION: Final = GpuBackend(
    name="flex_attention",
    archs=frozenset(Arch),
    capability=Capability(
        device=Device.CUDA,
        buckets=dense_buckets(
            (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32), (64, 16, 128), grouped=True, windows=True
        ),
        modes=tuple(Mode),
        query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
    ),
    contract=Contract(),
    session=FlexSession,
    kernels=(FLEX,),
    modules_of=lambda _: (),
    # The logits of 16-bit inputs may be kept in 16 bits between torch's operations.
    theoretical=lambda _: NoiseModel.unknown_kernel(),
    needs=(),
)
