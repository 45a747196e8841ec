"""What a literal call was handed, as tensors, without running anything."""

from typing import Any

import torch

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
