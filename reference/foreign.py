"""Reading untrusted files: bounded in size, and never blocking.

Every file that attnfuzz reads back (cases, logs, findings, ledgers, corpora, dumps) may be damaged or hostile.
"""

import errno
import os
import stat
from typing import Any, TypeVar, overload

import msgspec

MOST_BYTES = 1 << 28
"""Maximum size of a file that is read whole, in bytes. The log of a week's campaign has about 10 MB."""

MOST_BYTES_OF_RECORD = 1 << 24
"""Maximum size of a file with a single record (a case, a finding, a ledger), in bytes: typically a few kB."""

MOST_DEPTH = 64
"""Maximum nesting of untyped JSON. attnfuzz itself writes at most 8 levels."""

_MOST_CHARACTERS = 300

Decoded = TypeVar("Decoded")


def read_bytes(path: str | os.PathLike[str], most: int = MOST_BYTES_OF_RECORD) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises OSError as `read_beginning` does, and with EFBIG for a larger file.
    """
    content = read_beginning(path, most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB", os.fspath(path))
    return content


def read_beginning(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the first `most` bytes of a regular file, or all of a smaller one.

    Raises OSError with `path`, also with ENOTSUP for a FIFO, socket or device, which might block or never end.
    """
    try:
        # Without O_NONBLOCK, opening a FIFO that has no writer blocks.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:
        # A NUL in the path.
        raise OSError(errno.EINVAL, str(error), os.fspath(path)) from None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ENOTSUP, "not a regular file", os.fspath(path))
        return file.read(most)


@overload
def decode_json(data: bytes) -> Any: ...


@overload
def decode_json(data: bytes, type: type[Decoded] | msgspec.json.Decoder[Decoded]) -> Decoded: ...


def decode_json(data: bytes, type: Any = Any) -> Any:  # noqa: A002 - msgspec's name for it
    """Decode like `msgspec.json.decode`, but raise msgspec.DecodeError for any problem with `data`.

    msgspec raises UnicodeDecodeError for bytes that are not UTF-8 and RecursionError for deep nesting. Without a `type`
    to bound it, JSON may nest MOST_DEPTH deep. Passing a decoder as `type` is faster for many lines.
    """
    try:
        value = type.decode(data) if isinstance(type, msgspec.json.Decoder) else msgspec.json.decode(data, type=type)
    except UnicodeDecodeError:
        raise msgspec.DecodeError("it has bytes that are not UTF-8") from None
    except RecursionError:
        raise msgspec.DecodeError("it nests too deeply") from None
    if type is Any and _deeper_than(value, MOST_DEPTH):
        raise msgspec.DecodeError(f"it nests more than {MOST_DEPTH} deep")
    return value


def reason(error: Exception) -> str:
    """Shorten an error about untrusted data to one line: the message may quote data of any length."""
    text = " ".join(str(error).split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}..."


def _deeper_than(value: object, levels: int) -> bool:
    if isinstance(value, dict):
        return not levels or any(_deeper_than(each, levels - 1) for each in value.values())
    return isinstance(value, list) and (not levels or any(_deeper_than(each, levels - 1) for each in value))
