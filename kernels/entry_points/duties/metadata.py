"""Lengths and page ids are int32, one behind the other: kernels read them by raw pointer, as nothing else."""

from collections.abc import Iterator

import torch

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.entry_points.entry_point import Breach
from attnfuzz.kernels.entry_points.forms import METADATA, described, tensor_of

_DTYPE = "FlashInfer casts its pointer to int*; docstrings of seq_lens (uint32) and cum_seq_lens_q (int32)"
_STRIDE = "FlashInfer passes its pointer without a stride"


def breaches(call: Attention) -> Iterator[Breach]:
    """Metadata of another dtype, or with gaps between the numbers of a row.

    A gap between the rows of a page table is none of its caller's doing: no docstring asks for dense ones.
    """
    for parameter in call.parameters:
        if parameter.role not in METADATA:
            continue
        name, tensor = parameter.name, tensor_of(call.arguments, parameter.name)
        if tensor.dtype not in (torch.int32, torch.uint32):
            text = f"{name} is {described(tensor)}, where int32 is due: {_misread(tensor)}"
            yield Breach((name,), text, _DTYPE)
        elif tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            text = (
                f"{name} has stride {tensor.stride(-1)}: a kernel that takes its numbers to lie one behind the other "
                "reads what lies between them"
            )
            yield Breach((name,), text, _STRIDE)


def _misread(tensor: torch.Tensor) -> str:
    if tensor.dtype is torch.int64:
        return "read as int32, every second number is the upper half of the one before, and the last ones are missed"
    return "its bytes are read as other numbers"
