"""The repair of rows whose request has no keys, as a CUDA kernel of this project: one launch, no synchronisation."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from attnfuzz.kernels.backend import Op
from attnfuzz.kernels.gpu import nvcc

SOURCE = Path(__file__).with_name("fixup.cu")


@cache
def _kernel() -> Callable[..., None]:
    kernel: Callable[..., None] = nvcc.load(SOURCE).fixup_zero_kv_rows
    return kernel


def fixup_zero_kv_rows(
    out: torch.Tensor, lse: torch.Tensor, kv_lens: torch.Tensor, cum_seq_lens: torch.Tensor, max_seq_len: int
) -> None:
    """Write out = 0 and lse = -inf for every token of a request without keys; touch nothing else.

    Arguments and meaning are those of `attnfuzz.kernels.fixup`, the model, with all tensors on one GPU: any strides and
    offsets, less than 2^31 elements per token, less than 2^30 requests. Goes to torch's current stream, does not
    synchronise, and can be captured in a graph. Starts that do not ascend never hang it, but which tokens are whose is
    then undefined.

    Raises:
        ValueError: arguments of other shapes, dtypes or devices.
        NoCompiler, BuildFailed: it was not compiled yet and can't be (attnfuzz.kernels.library_cache).

    """
    _kernel()(out, lse, kv_lens, cum_seq_lens, max_seq_len)


FIXUP = Op("fixup_zero_kv_rows", fixup_zero_kv_rows, frozenset({"out", "lse"}))
