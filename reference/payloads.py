"""Large contents of a case made of calls: in a safetensors file beside its JSON, which stays short enough to read."""

import ctypes
import stat
from collections.abc import Callable
from pathlib import Path

import torch
from msgspec.structs import replace
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from attnfuzz.reference.calls import Buffer, CallCase, content_of, pack
from attnfuzz.reference.foreign import reason

INLINE_BYTES = 256 << 10
"""A case whose contents have more bytes than this together keeps them in a file of their own."""


class PayloadError(ValueError):
    """Contents that can't be had from the file beside a case; the message says what is wrong, and with which file."""


def split_off(case: CallCase) -> tuple[CallCase, dict[str, torch.Tensor]]:
    """The case without its large contents, and these by the names of their entries; none if all are small together."""
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


def bring_back(case: CallCase, path: Path) -> CallCase:
    """The case with the contents that `split_off` moved, from the file at `path`.

    Raises:
        PayloadError: the file can't be read, or lacks an entry of the right size.

    """
    names = {buffer.payload for buffer in case.buffers} | {write.payload for write in _writes(case)}
    if names == {None}:
        return case
    try:
        # A FIFO would block whoever opens it.
        if not stat.S_ISREG(path.stat().st_mode):
            raise PayloadError(f"the contents of its buffers are in {path}, which is no regular file")
        with safe_open(path, framework="pt") as file:
            return _contents_changed(case, lambda buffer, _: _inlined(buffer, file, path))
    except UnicodeError as error:
        raise PayloadError(f"the contents of its buffers are in {path}: give it a name in UTF-8") from error
    except OSError as error:
        raise PayloadError(f"the contents of its buffers are in {path}, which can't be read: {error}") from error
    except (SafetensorError, RuntimeError) as error:
        # torch's RuntimeError tells of a file that is too large to be mapped.
        raise PayloadError(f"the contents of its buffers are in {path}, which is damaged: {reason(error)}") from error


def write_payloads(path: Path, payloads: dict[str, torch.Tensor]) -> None:
    """Write the file that `bring_back` reads. Raises OSError."""
    try:
        save_file(payloads, path)
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error


def _inlined(buffer: Buffer, file: safe_open, path: Path) -> Buffer:
    if buffer.payload is None:
        return buffer
    if buffer.payload not in file.keys():  # noqa: SIM118 - it is no mapping
        raise PayloadError(f"{path} has no entry {buffer.payload}, which buffer {buffer.name} names")
    # Mapped, and not read yet, whatever its size.
    content = file.get_tensor(buffer.payload)
    if content.dtype != buffer.dtype.torch_dtype or tuple(content.shape) != (buffer.size,):
        held = f"{content.dtype} {list(content.shape)}".removeprefix("torch.")
        raise PayloadError(
            f"entry {buffer.payload} of {path} is {held}, but buffer {buffer.name} is {buffer.dtype} [{buffer.size}]"
        )
    return replace(buffer, payload=None, bits=pack(ctypes.string_at(content.data_ptr(), content.nbytes)))


def _contents_changed(case: CallCase, change: Callable[[Buffer, str], Buffer]) -> CallCase:
    """The case with `change` applied to every content, which is told a name that is unique in the case."""

    def changed(writes: tuple[Buffer, ...], owner: str) -> tuple[Buffer, ...]:
        return tuple(change(write, f"{owner}, write {index}") for index, write in enumerate(writes))

    answer = case.answer
    return replace(
        case,
        buffers=tuple(change(buffer, buffer.name) for buffer in case.buffers),
        calls=tuple(replace(call, writes=changed(call.writes, f"call {n}")) for n, call in enumerate(case.calls)),
        answer=None if answer is None else replace(answer, writes=changed(answer.writes, "answer")),
    )


def _writes(case: CallCase) -> list[Buffer]:
    return [write for call in case.calls for write in call.writes] + list(case.answer.writes if case.answer else ())
