"""The JSON format of cases: short enough for a report, versioned, with a one-line error for a damaged file.

Defaults are omitted, so a file shows the particulars of its case, and a new field does not change the ids of cases that
do not use it. Large contents of a case made of calls are in a second file.
"""

import ctypes
import hashlib
import json
import os
import stat
from collections.abc import Callable
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from attnfuzz.reference import foreign
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.call_validity import validate_bounds
from attnfuzz.reference.calls import Buffer, CallCase, content_of, pack
from attnfuzz.reference.case_types import decode_any
from attnfuzz.reference.user_error import UserError
from attnfuzz.reference.validity import ImpossibleCase

FORMAT = "attnfuzz-case"
VERSION = 1
PAYLOADS = ".payloads.safetensors"
"""Suffix of the file with large contents. Its stem is that of the case's file."""

INLINE_BYTES = 256 << 10
"""Total size of contents above which they are stored in a second file."""

_WIDTH = 100
_MOST_SHOWN = 40


class CaseFileError(UserError):
    """A file that does not contain a valid case. The message is one line with the problem and its remedy."""


def encode(case: AnyCase) -> bytes:
    """Encode a case as indented JSON: format, version and kind first, then the fields that differ from defaults."""
    return (_pretty({"format": FORMAT, "version": VERSION} | _plain(case)) + "\n").encode()


def decode(data: bytes, payloads: Path | None = None) -> AnyCase:
    """Decode a case, with large contents from the file at `payloads`.

    Raises:
        CaseFileError: `data` or the file is damaged, of another format or version, or describes an impossible case.
    """
    try:
        content = foreign.decode_json(data)
    except msgspec.DecodeError as error:
        raise CaseFileError(f"not JSON ({error}): the file is damaged, or not a case file") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CaseFileError(f'not a case file: it must be a JSON object with "format": "{FORMAT}"')
    version = content.get("version")
    if version != VERSION:
        raise CaseFileError(
            f"case file version {repr(version)[:_MOST_SHOWN]}: this attnfuzz reads version {VERSION}; use the "
            "one that wrote the file"
        )
    fields = {name: value for name, value in content.items() if name not in ("format", "version")}
    try:
        case: AnyCase = decode_any(AnyCase, fields)
        if isinstance(case, CallCase) and payloads is not None:
            validate_bounds(case)
            case = _bring_back(case, payloads)
        case.validate()
    except msgspec.ValidationError as error:
        raise CaseFileError(f"not a case: {foreign.reason(error)}; correct that field") from error
    except ImpossibleCase as error:
        raise CaseFileError(f"an impossible case: {error}") from error
    return case


def possible(case: AnyCase) -> bool:
    """Return whether a case can exist."""
    try:
        case.validate()
    except ImpossibleCase:
        return False
    return True


def load(path: str | os.PathLike[str]) -> AnyCase:
    """Read a case from a file. Raises CaseFileError, with the path, if it cannot be read or decoded."""
    source = Path(path)
    try:
        return decode(foreign.read_bytes(source), source.with_suffix(PAYLOADS))
    except OSError as error:
        raise CaseFileError(f"cannot read {source}: {error.strerror or error}; give a case file") from error
    except CaseFileError as error:
        raise CaseFileError(f"{source}: {error}") from error


def save(path: str | os.PathLike[str], case: AnyCase) -> None:
    """Write a case to `path`, and large contents to a file next to it. Raises OSError.

    Each file is written atomically.
    """
    target = Path(path)
    beside = target.with_suffix(PAYLOADS)
    payloads: dict[str, torch.Tensor] = {}
    if isinstance(case, CallCase):
        case, payloads = _split_off(case)
    if payloads:
        _write(beside, lambda draft: _write_payloads(draft, payloads))
    _write(target, lambda draft: draft.write_bytes(encode(case)))
    if not payloads:
        beside.unlink(missing_ok=True)


def _write(target: Path, write: Callable[[Path], object]) -> None:
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        write(draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def case_id(case: AnyCase) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of a case's canonical JSON."""
    return hashlib.sha256(msgspec.json.encode(_plain(case), order="sorted")).hexdigest()[:12]


def _plain(value: Any) -> Any:
    """Convert to JSON's types: structs become dicts without their defaults, with a struct's tag first."""
    if isinstance(value, msgspec.Struct):
        tag, fields = _layout(type(value))
        return tag | {name: _plain(content) for name, default in fields if (content := getattr(value, name)) != default}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value.value if isinstance(value, Enum) else value


@cache
def _layout(kind: type[msgspec.Struct]) -> tuple[dict[str, str], tuple[tuple[str, object], ...]]:
    """Return the tag of a struct type as a dict, and its fields with their defaults."""
    config = kind.__struct_config__
    tag = {} if config.tag is None else {str(config.tag_field): str(config.tag)}
    return tag, tuple((field.name, field.default) for field in msgspec.structs.fields(kind))


_on_one_line = json.JSONEncoder().encode


def _pretty(value: object, indent: str = "") -> str:
    """Format JSON, with every object and list that fits into a line on one line."""
    if not isinstance(value, dict | list):
        return _on_one_line(value)
    if indent and len(indent) + len(flat := _on_one_line(value)) <= _WIDTH:
        return flat
    inner = indent + "  "
    if isinstance(value, dict):
        items = [f"{inner}{_on_one_line(name)}: {_pretty(item, inner)}" for name, item in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    return "[\n" + ",\n".join(inner + _pretty(item, inner) for item in value) + f"\n{indent}]"


def _split_off(case: CallCase) -> tuple[CallCase, dict[str, torch.Tensor]]:
    """Split a case from its large contents, keyed by entry. Contents stay in the case if their total is small."""
    payloads: dict[str, torch.Tensor] = {}

    def outside(buffer: Buffer, entry: str) -> Buffer:
        content = content_of(buffer) if buffer.bits is not None else None
        if content is None or not buffer.size:
            return buffer
        payloads[entry] = content
        return replace(buffer, bits=None, payload=entry)

    moved = _contents_changed(case, outside)
    nbytes = sum(content.nbytes for content in payloads.values())
    return (moved, payloads) if nbytes > INLINE_BYTES else (case, {})


def _bring_back(case: CallCase, path: Path) -> CallCase:
    """Undo `_split_off`, with contents from the file at `path`.

    Raises:
        CaseFileError: the file can't be read, or lacks an entry of the right size.

    """
    if all(buffer.payload is None for buffer in (*case.buffers, *case.writes)):
        return case
    try:
        # Opening a FIFO would block.
        if not stat.S_ISREG(path.stat().st_mode):
            raise CaseFileError(f"the contents of its buffers are in {path}, which is not a regular file")
        with safe_open(path, framework="pt") as file:
            return _contents_changed(case, lambda buffer, _: _inlined(buffer, file, path))
    except UnicodeError as error:
        raise CaseFileError(f"the contents of its buffers are in {path}: give it a name in UTF-8") from error
    except OSError as error:
        raise CaseFileError(f"the contents of its buffers are in {path}, which can't be read: {error}") from error
    except (SafetensorError, RuntimeError) as error:
        # torch raises RuntimeError for a file that is too large to be mapped.
        raise CaseFileError(
            f"the contents of its buffers are in {path}, which is damaged: {foreign.reason(error)}"
        ) from error


def _write_payloads(path: Path, payloads: dict[str, torch.Tensor]) -> None:
    """Write the file that `_bring_back` reads. Raises OSError."""
    try:
        save_file(payloads, path)
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error


def _inlined(buffer: Buffer, file: safe_open, path: Path) -> Buffer:
    if buffer.payload is None:
        return buffer
    if buffer.payload not in file.keys():  # noqa: SIM118 - it is not a mapping
        raise CaseFileError(f"{path} has no entry {buffer.payload}, which buffer {buffer.name} names")
    # The tensor is mapped, not read, whatever its size.
    content = file.get_tensor(buffer.payload)
    if content.dtype != buffer.dtype.torch_dtype or tuple(content.shape) != (buffer.size,):
        held = f"{content.dtype} {list(content.shape)}".removeprefix("torch.")
        raise CaseFileError(
            f"entry {buffer.payload} of {path} is {held}, but buffer {buffer.name} is {buffer.dtype} [{buffer.size}]"
        )
    return replace(buffer, payload=None, bits=pack(ctypes.string_at(content.data_ptr(), content.nbytes)))


def _contents_changed(case: CallCase, change: Callable[[Buffer, str], Buffer]) -> CallCase:
    """Apply `change` to every content, with a name that is unique in the case."""

    def changed(writes: tuple[Buffer, ...], owner: str) -> tuple[Buffer, ...]:
        return tuple(change(write, f"{owner}, write {index}") for index, write in enumerate(writes))

    answer = case.answer
    return replace(
        case,
        buffers=tuple(change(buffer, buffer.name) for buffer in case.buffers),
        calls=tuple(replace(call, writes=changed(call.writes, f"call {n}")) for n, call in enumerate(case.calls)),
        answer=None if answer is None else replace(answer, writes=changed(answer.writes, "answer")),
    )
