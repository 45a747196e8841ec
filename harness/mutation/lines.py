"""The lines of some files that this process executes."""

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

Lines = dict[str, set[int]]
"""Executed lines by file."""

_TOOL = 3
"""A number of sys.monitoring that no known tool has (sys.COVERAGE_ID is 1, sys.PROFILER_ID 2, sys.OPTIMIZER_ID 5)."""


@contextmanager
def executed_lines(places: Sequence[str]) -> Iterator[Lines]:
    """Record the lines in files and folders that a block executes. Code that others trace is traced no longer."""
    found: Lines = {}
    recorded = _monitored if sys.version_info >= (3, 12) else _traced
    with recorded(tuple(places), found):
        yield found


@contextmanager
def _traced(places: tuple[str, ...], found: Lines) -> Iterator[None]:
    def on_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            found[frame.f_code.co_filename].add(frame.f_lineno)
        return on_line

    def on_call(frame: FrameType, _: str, __: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(places):
            return None
        found.setdefault(file, set())
        return on_line

    before = sys.gettrace()
    threading.settrace(on_call)
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(before)


@contextmanager
def _monitored(places: tuple[str, ...], found: Lines) -> Iterator[None]:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined]  # from Python 3.12 on

    def on_line(code: CodeType, line: int) -> Any:
        if code.co_filename.startswith(places):
            found.setdefault(code.co_filename, set()).add(line)
        return monitoring.DISABLE

    monitoring.use_tool_id(_TOOL, "attnfuzz")
    monitoring.register_callback(_TOOL, monitoring.events.LINE, on_line)
    monitoring.restart_events()
    monitoring.set_events(_TOOL, monitoring.events.LINE)
    try:
        yield
    finally:
        monitoring.set_events(_TOOL, 0)
        monitoring.register_callback(_TOOL, monitoring.events.LINE, None)
        monitoring.free_tool_id(_TOOL)
