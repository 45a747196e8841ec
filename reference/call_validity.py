"""Validity of cases made of literal calls: the calls may be malformed, but it must be possible to make them.

Names and bounds are checked before any content is created or read.
"""

import keyword
import math
import re
from pathlib import Path

import torch

from attnfuzz.reference.calls import (
    Argument,
    Buffer,
    Call,
    CallAnswer,
    CallCase,
    Expected,
    ExpectedLists,
    ExpectedTensor,
    ExpectedWrite,
    View,
    check_content,
    content_of,
    viewed,
    views_of_case,
)
from attnfuzz.reference.capability import FLOATS
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.nvfp4 import INTERLEAVED
from attnfuzz.reference.object_validity import validate_objects
from attnfuzz.reference.validity import ImpossibleCase, validate_backend_name

MAX_BYTES = 1 << 33
"""Maximum total size of all buffers and all writes between calls."""

MAX_BUFFERS = 1 << 15
MAX_CALLS = 1 << 12
MAX_NAME = 256

MAX_INTEGER = (1 << 63) - 1
"""Maximum of kernel arguments and of torch's sizes and strides, which have 64 bits."""

_DRAWN_ITEMSIZE = 4
"""Bytes per element while normal numbers are drawn."""

_COPIES = 4
"""Maximum number of copies of a case's buffers in a worker: as drawn, in their dtype, placed, and sealed."""

_ALWAYS_FITS = 1 << 28

_OP = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\[\w+\])?", re.ASCII)
"""Names in a backend's `ops`: a function, a method, or a function with its variant."""

MAX_AXES = 64
"""torch's limit."""


def validate_calls(case: CallCase) -> None:
    """Raise ImpossibleCase for the first broken rule, such as a view that leaves its buffer."""
    validate_bounds(case)
    if not case.calls:
        raise ImpossibleCase("calls", (), "must be at least one")
    validate_objects(case)
    buffers = _buffers(case)
    for write in case.writes:
        _validate_write(write, buffers)
    for view in views_of_case(case):
        _validate_view(view, buffers)
    if case.answer:
        _validate_answer(case.answer, buffers)
    for written in case.written:
        _validate_written(written, buffers)
    for tensor in case.expected:
        _validate_tensor(tensor, buffers)
    for lists in case.lists:
        _validate_lists(lists, buffers)


def _buffers(case: CallCase) -> dict[str, Buffer]:
    """Return buffers by name. Raises ImpossibleCase for content that does not fit its buffer."""
    buffers: dict[str, Buffer] = {}
    for buffer in case.buffers:
        if buffer.name in buffers:
            raise ImpossibleCase("name of a buffer", buffer.name, "must be unique")
        if buffer.offset:
            raise ImpossibleCase(f"buffer {buffer.name}", (buffer.size, buffer.offset), "must have a size, no offset")
        if buffer.hole is not None:
            raise ImpossibleCase(f"hole of {buffer.name}", buffer.hole, "must be none: only traces have them")
        _validate_content(buffer)
        buffers[buffer.name] = buffer
    return buffers


def _validate_content(buffer: Buffer) -> None:
    given = (buffer.values, buffer.zeros or None, buffer.bits, buffer.drawn, buffer.payload)
    if sum(content is not None for content in given) > 1:
        raise ImpossibleCase(
            f"content of {buffer.name}", "given twice", "must be one of values, zeros, bits, drawn and payload"
        )
    try:
        check_content(buffer)
    except ValueError as error:
        raise ImpossibleCase(f"content of {buffer.name}", "damaged", str(error)) from error


def _validate_write(write: Buffer, buffers: dict[str, Buffer]) -> None:
    target = buffers.get(write.name)
    if target is None or target.dtype is not write.dtype or not 0 <= write.offset <= target.size - write.size:
        raise ImpossibleCase(f"write to {write.name}", (write.offset, write.size), "must lie in a buffer of its dtype")
    if write.values is None and not write.zeros and write.bits is None and write.payload is None:
        raise ImpossibleCase(f"write to {write.name}", None, "must have content")
    _validate_content(write)


def _validate_view(view: View, buffers: dict[str, Buffer]) -> None:
    name = f"view of {view.buffer}"
    buffer = buffers.get(view.buffer)
    if buffer is None:
        raise ImpossibleCase(name, view.buffer, f"must name one of the buffers {', '.join(buffers)}")
    if len(view.shape) > MAX_AXES:
        raise ImpossibleCase(name, f"{len(view.shape)} axes", f"must be {MAX_AXES} at most")
    nbytes, itemsize = buffer.size * buffer.dtype.itemsize, _dtype(view, buffers).itemsize
    if nbytes % itemsize:
        raise ImpossibleCase(name, view.dtype, f"must divide the {nbytes} bytes of the buffer")
    if len(view.shape) != len(view.stride) or min((*view.shape, *view.stride, view.offset), default=0) < 0:
        raise ImpossibleCase(name, (view.shape, view.stride), "must have a stride for each size, none negative")
    # With strides of 0, a small buffer can have a huge view.
    if max((math.prod(view.shape) * itemsize, *view.shape, *view.stride, view.offset)) > MAX_INTEGER:
        raise ImpossibleCase(name, (view.shape, view.stride, view.offset), "must fit 64 bits")
    if math.prod(view.shape) * itemsize > MAX_BYTES:
        raise ImpossibleCase(name, view.shape, f"must be {MAX_BYTES} bytes at most")
    last = view.offset + sum((size - 1) * stride for size, stride in zip(view.shape, view.stride, strict=True))
    if 0 not in view.shape and last >= nbytes // itemsize:
        raise ImpossibleCase(
            name, (view.shape, view.stride, view.offset), f"must end within the {nbytes // itemsize} elements there are"
        )


def _validate_answer(answer: CallAnswer, buffers: dict[str, Buffer]) -> None:
    out, lse, sinks = answer.out, answer.lse, answer.sinks
    if len(out.shape) != 3:
        raise ImpossibleCase("answer: out", out.shape, "must be [rows, q_heads, dim]")
    if lse is not None and (lse.shape != out.shape[:2] or _dtype(lse, buffers) is not DType.FLOAT32):
        raise ImpossibleCase("answer: lse", lse.shape, f"must be float32 {list(out.shape[:2])}")
    if sinks is not None and (sinks.shape != out.shape[1:2] or _dtype(sinks, buffers) not in FLOATS):
        raise ImpossibleCase("answer: sinks", sinks.shape, f"must be floating-point numbers {list(out.shape[1:2])}")
    if answer.roundings < 1:
        raise ImpossibleCase("answer: roundings", answer.roundings, "must be at least 1")
    for expected in answer.requests:
        _validate_expected(expected, answer)
        _validate_dtypes(expected, answer, buffers)


def _validate_expected(expected: Expected, answer: CallAnswer) -> None:
    query, key, value = expected.query.shape, expected.key.shape, expected.value.shape
    first = answer.requests[0]
    if not len(query) == len(key) == len(value) == 3:
        raise ImpossibleCase("answer: a request", (query, key, value), "must be [tokens, heads, dim] tensors")
    if key[:2] != value[:2] or query[2] != key[2] or not key[1] or query[1] % key[1]:
        raise ImpossibleCase("answer: a request", (query, key, value), "q, K and V must fit each other")
    if (key[1:], value[2]) != (first.key.shape[1:], first.value.shape[2]):
        raise ImpossibleCase("answer: a request", (key, value), "all must have the heads and dims of the first")
    if (query[1], value[2]) != answer.out.shape[1:]:
        raise ImpossibleCase("answer: a request", (query, value), f"must give rows of {list(answer.out.shape[1:])}")
    if not 0 <= expected.first_row <= answer.out.shape[0] - query[0]:
        raise ImpossibleCase("answer: first_row", expected.first_row, f"must lie in the {answer.out.shape[0]} rows")


def _validate_written(written: ExpectedWrite, buffers: dict[str, Buffer]) -> None:
    shape, dtype = written.view.shape, _dtype(written.view, buffers)
    if len(shape) == 6 and shape[2] == shape[4] == INTERLEAVED:
        shape = (shape[0], INTERLEAVED * shape[1], shape[3], INTERLEAVED * shape[5])
    if len(shape) == 4 and dtype is DType.UINT8:
        shape, dtype = (*shape[:3], 2 * shape[3]), DType.FLOAT8_E4M3
    if len(shape) != 4 or not dtype.torch_dtype.is_floating_point:
        legal = "must be floating-point numbers, or bytes of NVFP4, [pages, slots, heads, dim]"
        raise ImpossibleCase("written: view", written.view.shape, legal)
    tokens = _validate_slots("places", written.places, 4, shape[:2], buffers)
    _validate_slots("free", written.free, 2, shape[:2], buffers)
    wanted = (tokens, *shape[2:])
    for name, bound in (("low", written.low), ("high", written.high or written.low)):
        if bound.shape != wanted or _dtype(bound, buffers) is not dtype:
            raise ImpossibleCase(f"written: {name}", bound.shape, f"must be {dtype} {list(wanted)}")


def _validate_tensor(expected: ExpectedTensor, buffers: dict[str, Buffer]) -> None:
    view, right, bound = expected.view, expected.right, expected.bound
    if right.shape != view.shape or _dtype(right, buffers) is not _dtype(view, buffers):
        raise ImpossibleCase("expected: right", right.shape, f"must be {_dtype(view, buffers)} {list(view.shape)}")
    if bound is None:
        return
    axes = zip(reversed(bound.shape), reversed(view.shape), strict=False)
    fits = len(bound.shape) <= len(view.shape) and all(size in (1, most) for size, most in axes)
    if not fits or _dtype(bound, buffers) not in (DType.FLOAT32, DType.FLOAT64):
        legal = f"must be float32 or float64, and broadcast to {list(view.shape)}"
        raise ImpossibleCase("expected: bound", bound.shape, legal)


def _validate_lists(expected: ExpectedLists, buffers: dict[str, Buffer]) -> None:
    view, scores, lengths, names = expected.view, expected.scores, expected.lengths, expected.names
    if len(view.shape) != 2 or _dtype(view, buffers) not in (DType.INT32, DType.INT64):
        raise ImpossibleCase("lists: view", view.shape, "must be int32 or int64 [rows, k]")
    if len(scores.shape) != 1 or _dtype(scores, buffers) is not DType.FLOAT32:
        raise ImpossibleCase("lists: scores", scores.shape, "must be float32 [n]")
    if names is not None and (names.shape != scores.shape or _dtype(names, buffers) is not DType.INT64):
        raise ImpossibleCase("lists: names", names.shape, f"must be int64 {list(scores.shape)}")
    buffer = buffers[lengths.buffer]
    if lengths.shape != view.shape[:1] or (lengths.dtype, buffer.dtype) != (None, DType.INT64):
        raise ImpossibleCase("lists: lengths", lengths.shape, f"must be int64 {list(view.shape[:1])}")
    content = content_of(buffer) if buffer.payload is None else None
    if content is not None:
        found = viewed(content, lengths)
        if (found < 0).any() or int(found.sum()) != scores.shape[0]:
            raise ImpossibleCase("lists: lengths", found.tolist(), f"must add up to the {scores.shape[0]} scores")


def _validate_slots(name: str, view: View, rows: int, pool: tuple[int, ...], buffers: dict[str, Buffer]) -> int:
    """Check that the first two rows are pages and slots within a pool. Return the number of slots."""
    buffer = buffers[view.buffer]
    if len(view.shape) != 2 or view.shape[0] != rows or (view.dtype, buffer.dtype) != (None, DType.INT64):
        raise ImpossibleCase(f"written: {name}", view.shape, f"must be int64 [{rows}, number of slots]")
    content = content_of(buffer) if buffer.payload is None else None
    if content is not None:
        at = viewed(content, view)[:2]
        if ((at < 0) | (at >= torch.tensor(pool).unsqueeze(1))).any():
            raise ImpossibleCase(f"written: {name}", "a slot outside", f"must be {pool[0]} pages of {pool[1]} slots")
    return view.shape[1]


def _validate_dtypes(expected: Expected, answer: CallAnswer, buffers: dict[str, Buffer]) -> None:
    query, key, value = (_dtype(view, buffers) for view in (expected.query, expected.key, expected.value))
    out = _dtype(answer.out, buffers)
    if query is not out or key is not value or not (out.torch_dtype.is_floating_point and out.itemsize > 1):
        raise ImpossibleCase("answer: dtypes", (out, query, key, value), "out and q must be alike, and K and V")
    mask = expected.mask
    if mask is not None and (_dtype(mask, buffers) is not DType.BOOL or mask.shape != _queries_and_keys(expected)):
        raise ImpossibleCase("answer: a mask", mask.shape, f"must be bool {list(_queries_and_keys(expected))}")
    if not key.torch_dtype.is_floating_point:
        raise ImpossibleCase("answer: dtype of K and V", key, "must be a floating point type")


def _queries_and_keys(expected: Expected) -> tuple[int, int]:
    return expected.query.shape[0], expected.key.shape[0]


def _dtype(view: View, buffers: dict[str, Buffer]) -> DType:
    return buffers[view.buffer].dtype if view.dtype is None else view.dtype


def is_parameter(name: str) -> bool:
    """Return whether `name` can be a keyword argument in Python source."""
    # Python normalizes non-ASCII identifiers, and the result may be a keyword.
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and len(name) <= MAX_NAME


def validate_bounds(case: CallCase) -> None:
    """Raise ImpossibleCase for invalid names and for sizes that no machine can hold."""
    validate_backend_name(case.backend)
    for field, number, most in (
        ("the number of buffers", len(case.buffers), MAX_BUFFERS),
        ("the number of calls", len(case.calls), MAX_CALLS),
    ):
        if number > most:
            raise ImpossibleCase(field, number, f"must be {most} at most")
    for call in case.calls:
        _validate_call(call)
    if case.answer is not None:
        _validate_numbers(case.answer)
    _validate_bytes(case)


def _validate_call(call: Call) -> None:
    if not _OP.fullmatch(call.op) or len(call.op) > MAX_NAME:
        raise ImpossibleCase("op", call.op, f"must be the name of a kernel, of {MAX_NAME} characters at most")
    for name, value in call.arguments.items():
        if not is_parameter(name):
            raise ImpossibleCase(
                f"an argument of {call.op}", name, f"must be a Python identifier of {MAX_NAME} characters at most"
            )
        _validate_scalar(name, value)
    for name in call.returned:
        if name not in ("out", "lse") or not isinstance(call.arguments.get(name), View):
            raise ImpossibleCase(f"returned of {call.op}", name, "must be out or lse, and an argument that is a view")


def _validate_scalar(name: str, value: Argument) -> None:
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ImpossibleCase(f"argument {name}", value, "must fit 64 bits")
    if isinstance(value, str) and not _is_text(value):
        raise ImpossibleCase(f"argument {name}", value, f"must be {MAX_NAME} printable characters at most")


def _validate_numbers(answer: CallAnswer) -> None:
    for name in ("window_left", "roundings"):
        value = getattr(answer, name)
        # Imported values come from a dump, which may contain anything.
        if not isinstance(value, int) or abs(value) > MAX_INTEGER:
            raise ImpossibleCase(f"answer: {name}", value, "must fit 64 bits")
    for name in ("bmm1_scale", "bmm2_scale", "soft_cap"):
        if not math.isfinite(getattr(answer, name)):
            raise ImpossibleCase(f"answer: {name}", getattr(answer, name), "must be finite")


def _validate_bytes(case: CallCase) -> None:
    total = 0
    for buffer in (*case.buffers, *case.writes):
        if not _is_text(buffer.name):
            raise ImpossibleCase("name of a buffer", buffer.name, f"must be {MAX_NAME} printable characters at most")
        if not 0 <= buffer.size <= MAX_INTEGER:
            raise ImpossibleCase(f"size of buffer {buffer.name}", buffer.size, "must be 0 or more, in 64 bits")
        itemsize = buffer.dtype.itemsize if buffer.drawn is None else max(buffer.dtype.itemsize, _DRAWN_ITEMSIZE)
        total += buffer.size * itemsize
        if total > MAX_BYTES:
            raise ImpossibleCase(
                f"size of buffer {buffer.name}", buffer.size, f"all may have {MAX_BYTES} bytes ({MAX_BYTES >> 30} GiB)"
            )
    available = _available_bytes() if total > _ALWAYS_FITS else total * _COPIES
    if total * _COPIES > available:
        raise ImpossibleCase(
            "the size of all buffers",
            f"{total} bytes",
            f"this machine has {available >> 20} MiB of memory left, and running it takes up to {_COPIES} times as "
            "much as its buffers; use a larger one",
        )


def _is_text(text: str) -> bool:
    return len(text) <= MAX_NAME and text.isprintable()


def _available_bytes() -> int:
    """Return the number of bytes of memory that are available on this machine."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) << 10
    return MAX_BYTES * _COPIES
