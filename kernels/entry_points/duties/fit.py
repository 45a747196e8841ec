"""Checks that tensors fit each other: equal sizes of equal axes, divisible heads, dense elements."""

from collections.abc import Iterator

import torch

from attnfuzz.kernels.entry_points.attention import Attention
from attnfuzz.kernels.meaning.entry_point import Arguments, Breach, Parameter, Role
from attnfuzz.kernels.meaning.forms import tensor_of

_SHAPES = "the shapes in FlashInfer's docstrings"
_HEADS = "FlashInfer: num_qo_heads must be a multiple of num_kv_heads"
_ELEMENTS = "FlashInfer docstring of kv_cache: the head_dim (last dim) must have stride 1; no entry point passes one"
_KV_DTYPE = "FlashInfer launches by K's dtype alone: for paged attention, K and V have the same dtype"
_OWN_SIZE = frozenset({"", "bytes", "columns", "K and V"})
_PER_REQUEST = frozenset({"requests", "requests + 1"})
_ROWS_OF_ELEMENTS = frozenset({Role.QUERY, Role.KEY, Role.VALUE, Role.CACHE, Role.OUT})
_PACKED_FP4 = torch.uint8
_WITH_HEADS = (Role.QUERY, Role.KEY, Role.CACHE)


def breaches(call: Attention) -> Iterator[Breach]:
    """Yield differing sizes, heads that can't be shared out, gaps between elements, and differing dtypes of K and V."""
    yield from sizes(call.arguments, call.parameters)
    heads, kv_heads = (call.size(axis, *_WITH_HEADS) for axis in ("q heads", "kv heads"))
    if kv_heads and heads % kv_heads:
        text = f"query has {heads} heads, no multiple of the {kv_heads} KV heads: it is rejected"
        yield Breach(("query",), text, _HEADS)
    keys_and_values = []
    for parameter in call.parameters:
        tensor = tensor_of(call.arguments, parameter.name)
        if parameter.role in _ROWS_OF_ELEMENTS and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            text = (
                f"{parameter.name} has stride {tensor.stride(-1)} in its last axis: other elements are read or written"
            )
            yield Breach((parameter.name,), text, _ELEMENTS)
        if parameter.role in (Role.KEY, Role.VALUE, Role.CACHE):
            keys_and_values.append((parameter.name, tensor.dtype))
    if len({dtype for _, dtype in keys_and_values}) > 1:
        listed = " and ".join(f"{name} is {str(dtype).removeprefix('torch.')}" for name, dtype in keys_and_values)
        yield Breach(tuple(name for name, _ in keys_and_values), f"{listed}: V is read as K's dtype", _KV_DTYPE)


def sizes(arguments: Arguments, parameters: tuple[Parameter, ...]) -> Iterator[Breach]:
    """Yield axes whose size differs from the first axis of the same kind."""
    first: dict[str, tuple[str, int]] = {}
    for parameter in parameters:
        tensor = tensor_of(arguments, parameter.name)
        for axis, size in zip(parameter.axes, tensor.shape, strict=True):
            packed = tensor.dtype is _PACKED_FP4 and axis in ("qk dim", "vo dim")
            if axis in _OWN_SIZE or packed or (axis in _PER_REQUEST and parameter.role not in _ROWS_OF_ELEMENTS):
                continue
            name, expected = first.setdefault(axis, (parameter.name, size))
            if size != expected:
                text = f"{parameter.name} has {_counted(size, axis)}, {name} has {expected}"
                yield Breach((parameter.name, name), text, _SHAPES)


def _counted(size: int, axis: str) -> str:
    return f"a {axis} of {size}" if axis.endswith("dim") else f"{size} {axis}"
