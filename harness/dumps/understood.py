"""A recorded call interpreted by its entry point: integer contents, and only the form of other tensors."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnfuzz.harness.dumps.recorded import DumpError, ForeignTensor, Recorded, RecordedCall
from attnfuzz.harness.memory.allocation import check_strides, dense_stride, extent
from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.meaning import Breach, Parameter, RequestSpan
from attnfuzz.reference.call_validity import MAX_BYTES

_INTEGERS = frozenset({torch.int32, torch.int64})
"""Dtypes of lengths and page ids, whose contents are read."""

_SCALES = frozenset({"bmm1_scale", "bmm2_scale"})


def pictured(call: RecordedCall) -> dict[str, Any]:
    """Map the arguments by name. Integer tensors have their content, others are on torch's "meta" device.

    Scales are numbers, even if passed as tensors of one element. Raises DumpError.
    """
    return {name: _pictured(name, value) for name, value in call.arguments.items()}


def is_scale(name: str, value: Recorded) -> bool:
    """Return whether an argument is a scale in a one-element tensor, as some FlashInfer kernels take it."""
    return name in _SCALES and isinstance(value, ForeignTensor) and value.shape in ((), (1,))


def layout_of(tensor: ForeignTensor) -> tuple[int, ...]:
    """Return a tensor's strides in a case: dense if they were lost or let elements overlap."""
    if tensor.stride is not None:
        with contextlib.suppress(ValueError):
            check_strides("", tensor.shape, tensor.stride)
            return tensor.stride
    return dense_stride(tensor.shape)


def _pictured(name: str, value: Recorded) -> Any:
    if isinstance(value, tuple):
        return tuple(_tensor(name, item) for item in value)
    if not isinstance(value, ForeignTensor):
        return value
    return value.read().to(torch.float64).item() if is_scale(name, value) else _tensor(name, value)


def _tensor(name: str, tensor: ForeignTensor) -> torch.Tensor:
    stride = layout_of(tensor)
    if extent(tensor.shape, stride) > MAX_BYTES:
        raise DumpError(f"{name} has strides {list(stride)} for a shape {list(tensor.shape)}: copy the dump again")
    if tensor.dtype not in _INTEGERS:
        return torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device="meta")
    content = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype)
    return content.copy_(tensor.read())


def form_of(call: RecordedCall, *names: str) -> str:
    """Describe the dtype and shape of the first argument with one of these names, "" if there is none."""
    for name in names:
        value = call.arguments.get(name)
        members = value if isinstance(value, tuple) else (value,)
        forms = [f"{each.dtype} {list(each.shape)}" for each in members if isinstance(each, ForeignTensor)]
        if forms:
            return " and ".join(forms).replace("torch.", "")
    return ""


@dataclass(frozen=True)
class Understood:
    """A call with its `pictured` arguments, its tensors by name, its requests, and the preconditions it breaks."""

    call: RecordedCall
    given: Mapping[str, Any]
    parameters: Mapping[str, Parameter]
    spans: tuple[RequestSpan, ...]
    breaches: tuple[Breach, ...]


def understood(call: RecordedCall) -> Understood:
    """Interpret a call. Raises DumpError if its function is unknown, or can't have such arguments."""
    entry = ENTRY_POINTS.get(call.function)
    if entry is None:
        raise DumpError(
            f"{call.folder}: the arguments of {call.function} are unknown; known are {', '.join(ENTRY_POINTS)}"
        )
    given = pictured(call)
    try:
        parameters, spans = entry.parameters(given), entry.spans(given)
    except ValueError as error:
        raise DumpError(f"{call.folder}: {call.function}: {error}; import another call") from error
    return Understood(
        call, given, {parameter.name: parameter for parameter in parameters}, spans, entry.breaches(given)
    )


def breaches_of(call: RecordedCall) -> tuple[Breach, ...]:
    """Return the preconditions that a call breaks; none for an unknown function. Raises DumpError."""
    entry = ENTRY_POINTS.get(call.function)
    return () if entry is None else entry.breaches(pictured(call))
