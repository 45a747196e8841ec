"""What a literal call was given, without running anything: its arguments as tensors, and views as rows."""

from typing import Any

import torch
from msgspec.structs import replace

from attnfuzz.reference.calls import Argument, Buffer, CallCase, View, content_of, named_views, viewed


def literal_arguments(case: CallCase, index: int) -> dict[str, Any]:
    """The arguments of call `index`, which share memory where its views share a buffer.

    Tensors hold what their buffers did before the first call, and what was written to them since by others than
    kernels; a buffer without content, which a kernel is to fill, holds zeros. What earlier calls computed is not there.

    Raises:
        ValueError: for content that is damaged or still in another file.

    """
    call = case.calls[index]
    used = {view.buffer for _, view in named_views(call.arguments)}
    buffers = {buffer.name: _content(buffer) for buffer in case.buffers if buffer.name in used}
    for each in case.calls[: index + 1]:
        for write in each.writes:
            if write.name in used:
                buffers[write.name][write.offset :][: write.size] = _content(write)
    return {name: _argument(value, buffers) for name, value in call.arguments.items()}


def _content(buffer: Buffer) -> torch.Tensor:
    content = content_of(buffer)
    return torch.zeros(buffer.size, dtype=buffer.dtype.torch_dtype) if content is None else content


def _argument(value: Argument, buffers: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, View):
        return viewed(buffers[value.buffer], value)
    if isinstance(value, list):
        return tuple(viewed(buffers[member.buffer], member) for member in value)
    return value


def flat(view: View, ndim: int) -> View:
    """The view with its leading axes made one, so that `ndim` are left. ValueError if no stride says so."""
    while len(view.shape) > ndim:
        rows, inner = view.shape[:2]
        if rows > 1 and inner > 1 and view.stride[0] != inner * view.stride[1]:
            raise ValueError(f"rows of {list(view.shape)} at strides {list(view.stride)} are not evenly apart")
        step = view.stride[1] if inner > 1 else view.stride[0]
        view = replace(view, shape=(rows * inner, *view.shape[2:]), stride=(step, *view.stride[2:]))
    return view


def rows(view: View, first: int, count: int) -> View:
    """So many entries of the first axis."""
    offset = view.offset + first * view.stride[0] if count else view.offset
    return replace(view, shape=(count, *view.shape[1:]), offset=offset)
