"""Ops on attention states, (out, LSE): FlashInfer's merge, and this project's repair of rows without keys.

The repair is a CUDA kernel of one launch, without synchronisation.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

from attnfuzz.kernels.cuda import nvcc
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.flashinfer_op import flashinfer_op
from attnfuzz.kernels.interface.backend import Op

FIXUP_SOURCE = Path(__file__).with_name("fixup.cu")


@cache
def _kernel() -> Callable[..., None]:
    kernel: Callable[..., None] = nvcc.load(FIXUP_SOURCE).fixup_zero_kv_rows
    return kernel


def fixup_zero_kv_rows(
    out: torch.Tensor, lse: torch.Tensor, kv_lens: torch.Tensor, cum_seq_lens: torch.Tensor, max_seq_len: int
) -> None:
    """Write out = 0 and lse = -inf for every token of a request without keys; touch nothing else.

    Arguments and semantics are those of the reference `planning.fixup`, with all tensors on one GPU: any
    strides and offsets, less than 2^31 elements per token, less than 2^30 requests. Runs on torch's current stream,
    does not synchronise, and can be captured in a graph. Starts that do not ascend never hang it, but the assignment of
    tokens to requests is then undefined.

    Raises:
        ValueError: arguments of other shapes, dtypes or devices.
        NoCompiler, BuildFailed: it was not compiled yet and can't be (attnfuzz.kernels.building.library_cache).

    """
    _kernel()(out, lse, kv_lens, cum_seq_lens, max_seq_len)


FIXUP = Op("fixup_zero_kv_rows", fixup_zero_kv_rows, frozenset({"out", "lse"}), helps=True)


MERGE_STATE_IN_PLACE = flashinfer_op("flashinfer.cascade", "merge_state_in_place", frozenset({"v", "s"}))


def _spec() -> Any:
    from flashinfer.jit import cascade  # noqa: PLC0415 - it creates a CUDA context

    return cascade.gen_cascade_module()


MERGE_MODULE = Module("merging of attention states", _spec)
