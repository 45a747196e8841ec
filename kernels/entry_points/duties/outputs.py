"""Checks that results have the kernel's shape and dtype, and memory of their own."""

import math
from collections.abc import Iterator

import torch

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.entry_points.entry_point import Arguments, Breach, Parameter, Role
from attnfuzz.kernels.entry_points.forms import described, tensor_of, tensors_of

_MOST_BYTES = 1 << 28
"""Interleaved tensors in more memory than this are assumed not to overlap, without a check."""


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether some byte belongs to elements of both. A tensor on the meta device has no memory."""
    if one.is_meta or other.is_meta:
        return False
    (begin, end), (other_begin, other_end) = _extent(one), _extent(other)
    first, last = max(begin, other_begin), min(end, other_end)
    if last <= first:
        return False
    if one.is_contiguous() and other.is_contiguous():
        return True
    nbytes = max(end, other_end) - min(begin, other_begin)
    if nbytes > _MOST_BYTES:
        return False
    taken = torch.zeros(nbytes, dtype=torch.bool)
    start = min(begin, other_begin)
    _bytes_of(one, taken, begin - start).fill_(True)
    return bool(_bytes_of(other, taken, other_begin - start).any())


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of a tensor's first byte and of the end of its last."""
    if not tensor.numel():
        return 0, 0
    elements = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.itemsize


def _bytes_of(tensor: torch.Tensor, memory: torch.Tensor, offset: int) -> torch.Tensor:
    shape = (*tensor.shape, tensor.itemsize)
    stride = (*(step * tensor.itemsize for step in tensor.stride()), 1)
    return memory.as_strided(shape, stride, offset)


_OUT = "FlashInfer: check_shape_dtype_device of out"
_FLOAT32 = "FlashInfer docstrings: lse of dtype torch.float32; attention_sinks must be a float tensor"
_APART = "FlashInfer docstrings: out and lse are outputs, for which no use in place is documented"
_WRITTEN = frozenset({Role.OUT, Role.LSE, Role.WORKSPACE})


def breaches(call: Attention) -> Iterator[Breach]:
    """Yield results of another shape or dtype, and results that share elements with the kernel's other tensors."""
    for parameter in call.parameters:
        tensor = tensor_of(call.arguments, parameter.name)
        if parameter.role in (Role.LSE, Role.SINKS) and tensor.dtype is not torch.float32:
            text = f"{parameter.name} is {described(tensor)}, where float32 is due: it is rejected, or misread"
            yield Breach((parameter.name,), text, _FLOAT32)
        if parameter.role is Role.LSE and math.prod(tensor.shape[:-1]) != call.query_rows:
            text = f"{parameter.name} has {math.prod(tensor.shape[:-1])} rows, {call.query} has {call.query_rows}"
            yield Breach((parameter.name, call.query), text, _FLOAT32)
        if parameter.role is Role.OUT:
            yield from _out(call, parameter.name, tensor)
    yield from in_place(call.arguments, call.parameters)


def _out(call: Attention, name: str, tensor: torch.Tensor) -> Iterator[Breach]:
    # If V is a tensor of its own, its axes are compared with those of the others.
    v_apart = any("vo dim" in parameter.axes for parameter in call.parameters if parameter.role is not Role.OUT)
    if not v_apart and tensor.shape[-1] != call.head_dim_vo and tensor.dtype is not torch.uint8:
        yield Breach((name,), f"{name} has head dim {tensor.shape[-1]}, the values have {call.head_dim_vo}", _OUT)
    due = call.arguments.get("out_dtype")
    if isinstance(due, torch.dtype) and due != tensor.dtype:
        due_name = str(due).removeprefix("torch.")
        yield Breach((name, "out_dtype"), f"{name} is {described(tensor)}, out_dtype says {due_name}", _OUT)


def in_place(arguments: Arguments, parameters: tuple[Parameter, ...]) -> Iterator[Breach]:
    """Yield written tensors that share elements with another tensor of the call."""
    written = [parameter.name for parameter in parameters if parameter.role in _WRITTEN]
    tensors = dict(tensors_of(arguments))
    checked: set[str] = set()
    for name in written:
        checked.add(name)
        for other, tensor in tensors.items():
            if other not in checked and overlap(tensors[name], tensor):
                text = f"{name} shares memory with {other}: writes to one are read from, or lost in, the other"
                yield Breach((name, other), text, _APART)
