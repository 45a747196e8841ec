"""Bounds of a case made of literal calls, and what its names may be: checked before any content is made or read."""

import keyword
import re
from collections.abc import Iterator
from pathlib import Path

from attnfuzz.reference.calls import Argument, Buffer, Call, CallAnswer, CallCase
from attnfuzz.reference.validity import ImpossibleCase, validate_backend_name

MAX_BYTES = 1 << 33
"""Of all buffers together, and of what is written to them between calls."""

MAX_BUFFERS = 1 << 15
MAX_CALLS = 1 << 12
MAX_NAME = 256

MAX_INTEGER = (1 << 63) - 1
"""Kernels take 64 bits, and so do torch's sizes and strides."""

_DRAWN_ITEMSIZE = 4
"""Bytes per element while normal numbers are drawn."""

_COPIES = 4
"""How often a worker holds a case's buffers at the most: as drawn, in their dtype, placed, and sealed."""

_ALWAYS_FITS = 1 << 28

_OP = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\[\w+\])?", re.ASCII)
"""A function, a method, or a function with the variant that was chosen: what a backend's `ops` are called."""


def is_parameter(name: str) -> bool:
    """Whether `name` can be that of a keyword argument in Python source."""
    # Python normalises other identifiers, perhaps to a keyword.
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and len(name) <= MAX_NAME


def validate_bounds(case: CallCase) -> None:
    """Raise ImpossibleCase for names that are none, and for more than a machine can hold."""
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


def _validate_scalar(name: str, value: Argument) -> None:
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise ImpossibleCase(f"argument {name}", value, "must fit 64 bits")
    if isinstance(value, str) and not _is_text(value):
        raise ImpossibleCase(f"argument {name}", value, f"must be {MAX_NAME} printable characters at most")


def _validate_numbers(answer: CallAnswer) -> None:
    for name in ("window_left", "roundings"):
        value = getattr(answer, name)
        # An import takes it from a dump, which may hold anything.
        if not isinstance(value, int) or abs(value) > MAX_INTEGER:
            raise ImpossibleCase(f"answer: {name}", value, "must fit 64 bits")


def _validate_bytes(case: CallCase) -> None:
    total = 0
    for buffer in _contents(case):
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


def _contents(case: CallCase) -> Iterator[Buffer]:
    yield from case.buffers
    for call in case.calls:
        yield from call.writes
    if case.answer is not None:
        yield from case.answer.writes


def _is_text(text: str) -> bool:
    return len(text) <= MAX_NAME and text.isprintable()


def _available_bytes() -> int:
    """The memory that this machine has left."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) << 10
    return MAX_BYTES * _COPIES
