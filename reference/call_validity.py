"""Which cases made of literal calls can exist. What the calls ask of a kernel may be malformed; the case must not be."""

from collections.abc import Iterator

from attnfuzz.reference.calls import CallCase, Expected, View, content_of
from attnfuzz.reference.validity import ImpossibleCase

MAX_BYTES = 1 << 33
"""Of all buffers together."""


def validate_calls(case: CallCase) -> None:
    """Raise ImpossibleCase for the first thing that can't be: a view that leaves its buffer, content that does not fit."""
    sizes: dict[str, int] = {}
    for buffer in case.buffers:
        if buffer.name in sizes:
            raise ImpossibleCase("buffers", buffer.name, "each buffer needs a name of its own")
        if not 0 <= buffer.size * buffer.dtype.itemsize <= MAX_BYTES:
            raise ImpossibleCase(f"size of buffer {buffer.name}", buffer.size, f"must be 0 to {MAX_BYTES} bytes")
        sizes[buffer.name] = buffer.size
    if sum(buffer.size * buffer.dtype.itemsize for buffer in case.buffers) > MAX_BYTES:
        raise ImpossibleCase("buffers", len(case.buffers), f"must hold at most {MAX_BYTES} bytes together")
    if not case.calls:
        raise ImpossibleCase("calls", (), "must have at least one call")
    for buffer in (*case.buffers, *(write for call in case.calls for write in call.writes)):
        if sizes.get(buffer.name) != buffer.size:
            raise ImpossibleCase(f"write to {buffer.name}", buffer.size, "must be of a buffer's name and size")
        try:
            content_of(buffer)
        except (ValueError, OverflowError) as error:
            raise ImpossibleCase(f"content of {buffer.name}", "damaged", str(error)) from error
    for view in _views(case):
        _validate_view(view, sizes)
    for expected in case.answer.requests if case.answer else ():
        _validate_expected(expected)


def _views(case: CallCase) -> Iterator[View]:
    for call in case.calls:
        for value in call.arguments.values():
            if isinstance(value, View):
                yield value
            elif isinstance(value, list):
                yield from value
    answer = case.answer
    if answer is not None:
        yield from (view for view in (answer.out, answer.lse, answer.sinks) if view is not None)
        for expected in answer.requests:
            yield from (expected.query, expected.key, expected.value)


def _validate_view(view: View, sizes: dict[str, int]) -> None:
    name = f"view of {view.buffer}"
    if view.buffer not in sizes:
        raise ImpossibleCase(name, view.buffer, f"must name one of the buffers {', '.join(sizes)}")
    if len(view.shape) != len(view.stride) or min((*view.shape, *view.stride, view.offset), default=0) < 0:
        raise ImpossibleCase(name, (view.shape, view.stride), "must have a stride for each size, none negative")
    last = view.offset + sum((size - 1) * stride for size, stride in zip(view.shape, view.stride, strict=True))
    if 0 not in view.shape and last >= sizes[view.buffer]:
        raise ImpossibleCase(name, (view.shape, view.stride, view.offset), f"must end before {sizes[view.buffer]}")


def _validate_expected(expected: Expected) -> None:
    tensors = (expected.query, expected.key, expected.value)
    if any(len(view.shape) != 3 for view in tensors):
        raise ImpossibleCase("answer", [view.shape for view in tensors], "must be [tokens, heads, dim] tensors")
    if expected.key.shape[:2] != expected.value.shape[:2] or expected.query.shape[2] != expected.key.shape[2]:
        raise ImpossibleCase("answer", [view.shape for view in tensors], "q, K and V must fit each other")
