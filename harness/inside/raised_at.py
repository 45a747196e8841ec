"""The lines of a backend's own code that an exception comes from."""

import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from types import FrameType

from attnfuzz.harness.verdict.printable import label
from attnfuzz.harness.verdict.wording import count

_OURS = "attnfuzz"

_BELOW = sys.stdlib_module_names | {"torch"}
"""Packages in which an exception says little: the line that calls them is the mistake."""

_MOST_FRAMES = 8
"""Frames of a traceback. A recursion has as many as the interpreter allows."""


def raised_at(error: BaseException) -> str:
    """Return the innermost line of the backend's own code that an exception passed through, as FILE:LINE.

    Empty if there is none, or if the exception comes from attnfuzz's code below it: a check of ours, or a kernel of
    ours that rejects its arguments, raises for many reasons at one line.
    """
    for frame, line in reversed(list(_frames(error))):
        package = _module(frame).partition(".")[0]
        if package == _OURS:
            return ""
        if package not in _BELOW:
            return label(f"{_file(frame)}:{line}")
    return ""


def traceback_of(error: BaseException) -> str:
    """Return the frames of an exception outside of attnfuzz, a line each, or "" if there are none.

    Only the last frames of a long traceback are in it.
    """
    frames = [each for each in _frames(error) if _module(each[0]).partition(".")[0] != _OURS]
    lines = [_line(frame, number) for frame, number in frames[-_MOST_FRAMES:]]
    if left_out := len(frames) - len(lines):
        lines.insert(0, f"({count(left_out, 'frame')} before)")
    return "\n".join(f"  {line}" for line in lines)


def _line(frame: FrameType, number: int) -> str:
    source = label(linecache.getline(frame.f_code.co_filename, number).strip())
    where = label(f"{_file(frame)}:{number}, in {frame.f_code.co_name}")
    return f"{where}: {source}" if source else where


def _frames(error: BaseException) -> Iterator[tuple[FrameType, int]]:
    return walk_tb(error.__traceback__)


def _module(frame: FrameType) -> str:
    # A backend's code may have anything for its name.
    name = frame.f_globals.get("__name__")
    return name if type(name) is str else ""


def _file(frame: FrameType) -> str:
    """Return a file's name, with the package's path before it. Folders of this machine are left out."""
    package = _module(frame).split(".")[:-1]
    return "/".join((*package, Path(frame.f_code.co_filename).name))
