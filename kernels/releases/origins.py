"""The lines of a release behind a launch: the one that calls the kernel, and those that made the call's metadata."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from attnfuzz.kernels.releases import recording

_WRITES: Final = 2
"""The last writes of a tensor that are kept: a buffer is filled, and then its rows behind the batch."""

_METADATA: Final = (torch.int32, torch.int64, torch.bool, torch.uint32)
_HELPERS: Final = re.compile(r"utils\.py$|/warmup/|_custom_ops\.py$")
"""Files through which copies, Triton's launches and calls of operators pass (vLLM 0.33.0: _custom_ops.py, and
model_executor/warmup/jit_warmup.py:51)."""


class Origins(TorchFunctionMode):
    """Notes the lines of a release below `root` that make tensors and write to them, while it is active.

    Numbers that a release computes in numpy are known from the line that copies them to a tensor.
    """

    def __init__(self, root: Path, package: str) -> None:
        super().__init__()
        self._root, self._package = f"{root}/", f"{root}/{package}/"
        self._made: dict[tuple[object, ...], str] = {}
        self._written: dict[int, tuple[str, ...]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `func`, and note the line if the result is a tensor, or an argument that it writes."""
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        target = args[0] if name == "__setitem__" else result
        if not _is_metadata(target) or recording.paused():
            return result
        inside = name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or "out" in (kwargs or {})
        line = self.line(sys._getframe(1))  # noqa: SLF001 - there is no other way to the frames of callers
        if line is None:
            return result
        if inside:
            self._note_write(target, line)
        elif not _shares_memory(target, args):
            self._written[_storage(target)] = ()
            self._made[_form(target)] = line
        else:
            self._made[_form(target)] = line
        return result

    def wrote(self, tensor: torch.Tensor) -> None:
        """Note that the release's present line has a kernel write to a tensor."""
        line = self.line(sys._getframe(1))  # noqa: SLF001
        if line is not None and _is_metadata(tensor):
            self._note_write(tensor, line)

    def line(self, frame: FrameType | None = None) -> str | None:
        """Return the release's innermost line outside of files of helpers, if any, as FILE:LINE below its package."""
        frame = frame or sys._getframe(1)  # noqa: SLF001
        found: str | None = None
        for each in _frames(frame):
            file = each.f_code.co_filename
            if file.startswith(self._root):
                found = f"{file.removeprefix(self._package)}:{each.f_lineno}"
                if not _HELPERS.search(file):
                    break
        return found

    def words(self, called: str | None, arguments: Mapping[str, Any]) -> str:
        """Describe the line of a call, with those of its metadata; a line alone is one of the same file."""
        if called is None:
            return ""
        file = called.partition(":")[0]
        known = {name: self._lines(value) for name, value in arguments.items() if _is_metadata(value)}
        parts = [f"{name} of {_listed(lines, file)}" for name, lines in known.items() if lines]
        return f"called at {called}{f' with {_joined(parts)}' if parts else ''}"

    def _lines(self, tensor: torch.Tensor) -> list[str]:
        """Return the line that made a tensor, and those that wrote to its memory last, oldest first."""
        made = self._made.get(_form(tensor))
        return list(dict.fromkeys(filter(None, (made, *self._written.get(_storage(tensor), ())))))

    def _note_write(self, tensor: torch.Tensor, line: str) -> None:
        before = [each for each in self._written.get(_storage(tensor), ()) if each != line]
        self._written[_storage(tensor)] = (*before[-_WRITES + 1 :], line)


def _is_metadata(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _METADATA


def _listed(lines: Sequence[str], file: str) -> str:
    """Describe the line that made a tensor, and those that wrote to it; a file is named where it changes."""
    made, *written = ((name, number) for name, _, number in (each.rpartition(":") for each in lines))
    first = f"line {made[1]}" if made[0] == file else ":".join(made)
    if not written:
        return first
    shown, before = [], ""
    for name, number in written:
        shown.append(number if name == before else f"line {number}" if name == file else f"{name}:{number}")
        before = name
    return f"{first} (written at {_joined(shown)})"


def _joined(parts: Sequence[str]) -> str:
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _shares_memory(tensor: torch.Tensor, args: tuple[Any, ...]) -> bool:
    return any(isinstance(each, torch.Tensor) and _storage(each) == _storage(tensor) for each in args)
