"""torch's attention on the GPU: each fused kernel of scaled_dot_product_attention by itself, and flex_attention.

flex_attention runs uncompiled, on torch's plain operations: compiling it takes too long for workers that may die. A
step is one call: requests lie one after another, and the mask separates them, as its authors recommend for ragged
batches ("document masking", PyTorch blog, "FlexAttention: The Flexibility of PyTorch with the Performance of
FlashAttention", 2024).
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from attnfuzz.kernels.arguments.edges import UNSAID_EDGES
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend, bucket
from attnfuzz.kernels.interface.backend import Op, Output, Unsupported
from attnfuzz.kernels.libraries.torch_attention import block_mask
from attnfuzz.kernels.libraries.torch_sdpa import ARGUMENTS, OF_MASKS, SdpaSession, attend_into
from attnfuzz.kernels.planning.lengths import place_int32, running_sum
from attnfuzz.kernels.planning.packed_masks import flat_masks, masks_of_rows
from attnfuzz.kernels.planning.plan import Row
from attnfuzz.reference.arguments import ArgumentForm, EarlierUse, unsaid, without
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Mask, Mode, QueryView, Request, Step
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.masks import applies
from attnfuzz.reference.noise import NoiseModel


def attend_with(kernel: str, *, lower_right: bool = False, **arguments: Any) -> None:
    """Call attend_into on the kernel that SDPBackend calls `kernel`.

    `lower_right` aligns the last query to the last key, in torch's own notation instead of a mask
    (torch.nn.attention.bias.causal_lower_right).
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415 - only where there is a GPU
    from torch.nn.attention.bias import causal_lower_right  # noqa: PLC0415

    if lower_right:
        arguments["attn_mask"] = causal_lower_right(arguments["query"].shape[2], arguments["key"].shape[2])
    try:
        with sdpa_kernel([getattr(SDPBackend, kernel)]):
            attend_into(**arguments)
    except RuntimeError as error:
        if "No available kernel" in str(error):
            raise Unsupported(f"torch has no {kernel} kernel for this call") from error
        raise


def _op(kernel: str) -> Op:
    return Op(f"scaled_dot_product_attention[{kernel}]", partial(attend_with, kernel), frozenset({"out"}))


FLASH: Final = _op("FLASH_ATTENTION")
EFFICIENT: Final = _op("EFFICIENT_ATTENTION")
CUDNN: Final = _op("CUDNN_ATTENTION")


class UnmaskedSession(SdpaSession):
    """A session for kernels without a mask argument, which have named causal masks alone, or none."""

    def _masked(self, step: Step, request: Request) -> dict[str, Any]:
        if self._case.mask is Mask.FULL:
            return {"is_causal": False}
        square = request.q_len == request.kv_len
        return {"is_causal": square, "lower_right": not square}


class FlashSession(UnmaskedSession):
    """A session on torch's FlashAttention-2."""

    op: Op = FLASH


class EfficientSession(SdpaSession):
    """A session on the memory-efficient kernels, under a mask if the problem is not square."""

    op: Op = EFFICIENT


class CudnnSession(SdpaSession):
    """A session on cuDNN's kernels, under a mask if the problem is not square."""

    op: Op = CUDNN


def dense_buckets(
    dtypes: tuple[DType, ...], dims: tuple[int, ...], *, grouped: bool, windows: bool
) -> tuple[Bucket, ...]:
    """List buckets; grouped heads work "only for Flash_attention and math kernel" (scaled_dot_product_attention)."""
    return tuple(
        bucket(
            dtype,
            dim,
            heads=((1, 1), (3, 3), (4, 2), (6, 1)) if grouped else ((1, 1), (3, 3)),
            page_sizes=(16,),
            layouts=(KvLayout.HND,),
            windows=(-1, 0, 5, 200) if windows else (-1,),
        )
        for dtype in dtypes
        for dim in dims
    )


# ATen, transformers/cuda/sdp_utils.cpp: FlashAttention-2 and cuDNN on [sm80, sm121], the others from sm50 on.
_ARCHS: Final = frozenset(Arch)


def _backend(
    name: str, session: type[SdpaSession], buckets: tuple[Bucket, ...], theory: Callable[[DType], NoiseModel]
) -> GpuBackend:
    masked = not issubclass(session, UnmaskedSession)
    return GpuBackend(
        name=name,
        archs=_ARCHS,
        capability=Capability(
            device=Device.CUDA,
            edges=UNSAID_EDGES,
            buckets=buckets,
            modes=Mode.of_kernels(),
            # torch warns that the lower right variant of CausalBias gives NaN with more queries than keys
            # (torch/nn/attention/bias.py).
            empty_kv=True,
            kv_shorter_than_q=masked,
            query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
            arguments=ARGUMENTS if masked else without(ARGUMENTS, *OF_MASKS),
            masks=tuple(Mask) if masked else (Mask.CAUSAL, Mask.FULL),
            windowed_masks=tuple(Mask),
            right_windows=masked,
            # A call for each request: a step of hundreds takes its time beside other jobs.
            patience=4.0,
        ),
        contract=Contract(),
        session=session,
        kernels=(session.op,),
        theoretical=theory,
        needs=(),
    )


_HALVES: Final = (DType.BFLOAT16, DType.FLOAT16)
SDPA_FLASH: Final = _backend(
    "sdpa_flash",
    FlashSession,
    dense_buckets(_HALVES, (64, 8, 72, 256), grouped=True, windows=False),
    # FlashAttention-2 sums the weights in fp32 and rounds them for the second product (ATen, flash_fwd_kernel.h).
    lambda dtype: NoiseModel.rounded_probabilities(dtype.torch_dtype),
)
SDPA_EFFICIENT: Final = _backend(
    "sdpa_efficient",
    EfficientSession,
    dense_buckets((*_HALVES, DType.FLOAT32), (64, 8, 72, 256), grouped=False, windows=True),
    lambda _: NoiseModel.unknown_kernel(),
)
SDPA_CUDNN: Final = _backend(
    "sdpa_cudnn",
    CudnnSession,
    dense_buckets(_HALVES, (64, 128), grouped=False, windows=True),
    lambda _: NoiseModel.unknown_kernel(),
)


_NO_REQUEST: Final = -1


def attend_flexibly(
    *,
    out: torch.Tensor,
    request_of_query: torch.Tensor,
    own_key: torch.Tensor,
    request_of_key: torch.Tensor,
    position: torch.Tensor,
    window_left: int,
    masks: torch.Tensor | None = None,
    mask_rows: torch.Tensor | None = None,
    cropped: bool = False,
    **arguments: Any,
) -> None:
    """Write flex_attention to `out` [1, heads, rows, dim], within requests: causal, or under their masks.

    int32 [rows]: the request of each query, -1 for padding, and the position of its own key in that request. int32
    [keys]: the request of each key, and its position there. `masks` are the masks of all requests, flat, in which the
    row of each query begins at `mask_rows`. The block mask may be `cropped` from one for longer sequences.
    """
    from torch.nn.attention import flex_attention as flex  # noqa: PLC0415 - it imports the compiler

    rows, keys = arguments["query"].shape[2], arguments["key"].shape[2]

    def seen(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        del batch, head
        query, key = query.clamp(max=rows - 1), key.clamp(max=keys - 1)
        own, at = own_key[query], position[key]
        same = request_of_query[query] == request_of_key[key]
        if masks is None or mask_rows is None:
            allowed = torch.logical_and(same, at <= own)
        else:
            # The entry of another request's key may lie outside.
            allowed = torch.logical_and(same, masks[(mask_rows[query] + at).clamp(max=masks.shape[0] - 1)])
        return torch.logical_and(allowed, at >= own - window_left) if window_left >= 0 else allowed

    mask = block_mask(seen, None, (rows, keys), str(out.device), cropped=cropped)
    # Otherwise it is traced anew for every shape, which takes seconds.
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*without torch.compile")
        out.copy_(flex.flex_attention(**arguments, block_mask=mask))


FLEX: Final = Op("flex_attention", attend_flexibly, frozenset({"out"}), "torch.nn.attention.flex_attention")


class FlexSession(SdpaSession):
    """A session with one call per step; K and V of all requests lie one after another. No keys, no call."""

    op: Op = FLEX

    def forward(self, index: int) -> Output:
        """Run one step.

        cuBLASLt may split the product with V over the keys, and add parts rounded to 16 bits: its splitKreduce_kernel,
        as torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction allows by default.
        """
        return replace(super().forward(index), roundings=2)

    def _compute(self, step: Step, query: torch.Tensor, out: torch.Tensor) -> None:
        if any(request.kv_len for request in step.requests) and step.padded_tokens:
            key, value = self._tokens.packed(step)
            key, value = self._bench.memory.copy("key", key), self._bench.memory.copy("value", value)
            masked = {"window_left": self._case.geometry.window_left, **self._within_requests(step)}
            if EarlierUse.CROPPED in self._case.life:
                masked["cropped"] = True
            if applies(self._case, step):
                masked |= self._masks(step)
            self._attend(query, key, value, out, masked)
        else:
            out.zero_()

    def _masks(self, step: Step) -> dict[str, torch.Tensor]:
        """Place the masks of all requests, and the entry at which each query's row begins: 0 for padding."""
        masks = masks_of_rows(self._case, step, Row.real(step))
        ends = running_sum(mask.numel() for mask in masks)
        rows = [end + i * mask.shape[1] for end, mask in zip(ends, masks, strict=False) for i in range(len(mask))]
        rows += [0] * (step.padded_tokens - step.tokens)
        flat = self._bench.memory.copy("masks", flat_masks(masks).view(torch.uint8)).view(torch.bool)
        return {"masks": flat, "mask_rows": place_int32(self._bench, "mask_rows", rows)}

    def _within_requests(self, step: Step) -> dict[str, torch.Tensor]:
        """Place the arguments for the request of each query and key, and for its position there."""
        padding = [_NO_REQUEST] * (step.padded_tokens - step.tokens)
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
        edges=UNSAID_EDGES,
        buckets=dense_buckets(
            (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32), (64, 16, 128), grouped=True, windows=True
        ),
        modes=Mode.of_kernels(),
        query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
        # 'scale: "If none, the default value is set to 1/sqrt(E)"' is flex_attention's docstring, too.
        arguments=(*without(ARGUMENTS, *OF_MASKS, ArgumentForm.SCALE_TENSOR), *unsaid(ArgumentForm.SCALE_TENSOR)),
        masks=tuple(Mask),
        windowed_masks=tuple(Mask),
        earlier_uses=(EarlierUse.CROPPED,),
    ),
    contract=Contract(),
    session=FlexSession,
    kernels=(FLEX,),
    # The logits of 16-bit inputs may be kept in 16 bits between torch's operations.
    theoretical=lambda _: NoiseModel.unknown_kernel(),
    needs=(),
)
