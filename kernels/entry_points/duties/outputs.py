"""Checks that results have the kernel's shape and dtype, and memory of their own."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.meaning.entry_point import Arguments, Breach, Parameter, Role
from attnfuzz.kernels.meaning.forms import described, tensor_of, tensors_of

_MOST_WORK = 1 << 20
"""Candidates that numpy looks at before interleaved tensors are assumed not to overlap."""


class _Bytes:
    """A tensor's bytes for numpy, which takes their addresses and reads none of them."""

    def __init__(self, tensor: torch.Tensor) -> None:
        # https://numpy.org/doc/stable/reference/arrays.interface.html
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (tensor.data_ptr(), True),
            "shape": (*tensor.shape, tensor.itemsize),
            "strides": (*(step * tensor.itemsize for step in tensor.stride()), 1),
        }


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether some byte belongs to elements of both. A tensor on the meta device has no memory."""
    if one.is_meta or other.is_meta or not one.numel() or not other.numel():
        return False
    try:
        # numpy's annotation knows two values of max_work alone.
        work: Any = _MOST_WORK
        return np.shares_memory(np.asarray(_Bytes(one)), np.asarray(_Bytes(other)), max_work=work)
    except RuntimeError:
        # numpy's TooHardError, which has another place before 1.25.
        return False


_OUT = "FlashInfer: check_shape_dtype_device of out"
_FLOAT32 = "FlashInfer docstrings: lse of dtype torch.float32; attention_sinks must be a float tensor"
_APART = "FlashInfer docstrings: out and lse are outputs, for which no use in place is documented"
_WRITTEN = frozenset({Role.OUT, Role.LSE, Role.WORKSPACE})


def breaches(call: Attention) -> Iterator[Breach]:
    """Yield results of another shape or dtype, and results that share elements with the kernel's other tensors."""
    for parameter in call.parameters:
        tensor = tensor_of(call.arguments, parameter.name)
        if parameter.role in (Role.LSE, Role.SINKS) and tensor.dtype is not torch.float32:
            text = f"{parameter.name} is {described(tensor)}, but must be float32: it is rejected, or misread"
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
