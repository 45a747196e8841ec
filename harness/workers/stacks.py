"""Where a worker hangs: its Python and native stacks, which it writes into its journal when it gets a signal.

The signals are handled in C, so a worker answers in the middle of a kernel, but not inside a driver that never returns.
"""

import contextlib
import ctypes
import faulthandler
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from itertools import pairwise, takewhile
from pathlib import Path

from attnfuzz.harness.workers.journal import Journal

_BOTH, _NATIVE = signal.SIGRTMAX - 3, signal.SIGRTMAX - 2
"""Signals for both stacks of a thread, and for the native one. glibc uses the first ones, profilers the last ones.

A signal interrupts a waiting thread, so one has to be enough for both.
"""

_SECONDS = 1.0
"""Time limit for the stacks of a thread."""

_SECONDS_PER_LOOK = 0.02
_SETTLED = 5
"""Looks without a change after which stacks are complete."""

_MOST_FRAMES = 10
_MOST_THREADS = 4

_PYTHON_THREAD = re.compile(r"^(?:Current thread|Thread) 0x", re.MULTILINE)
_PYTHON_FRAME = re.compile(r'^  File "(?P<file>[^"\n]*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_NATIVE_FRAME = re.compile(r"^(?P<file>[^\s(]*)\((?P<symbol>[^+)]*)(?P<offset>\+0x[0-9a-f]+)?\)", re.MULTILINE)
_OWN = "harness/workers/worker.py"
_INTERPRETER = re.compile(r"^(?:lib)?python[\d.]*(?:\.so.*)?$")
_HANDLER = 2
"""Number of frames of the signal handler itself."""

Writer = Callable[[int, int], None]
"""Installs a handler of a signal, which appends the native stack to a file."""


def install(journal: Journal, writer: Writer | None) -> None:
    """Let this worker answer `asked`. Without `writer` it has no native stack."""
    descriptor = journal.open_stacks()
    faulthandler.register(_BOTH, file=descriptor, all_threads=True)
    if writer is not None:
        writer(_BOTH, descriptor)
        writer(_NATIVE, descriptor)


def asked(pid: int, journal: Journal) -> str:
    """Return the stacks of a worker that hangs, in lines: of Python, then of its threads that run. "" if unknown."""
    state = _state(Path(f"/proc/{pid}/stat"))
    lines = [f"in the kernel, which does not let it go (state {state}{_wchan(pid)})"] if state == "D" else []
    busy = _busy(pid)
    text = _written(pid, pid, _BOTH, journal)
    lines += [*_python(text), *_native(text)]
    for thread in busy:
        lines += _native(_written(pid, thread, _NATIVE, journal), f" of thread {thread}")
    return "\n".join(lines)


def _written(pid: int, thread: int, number: int, journal: Journal) -> str:
    """Send a thread a signal, and return the text that it writes then."""
    before, until, last, same = len(journal.stacks), time.monotonic() + _SECONDS, "", 0
    _send(pid, thread, number)
    while time.monotonic() < until and same < _SETTLED:
        time.sleep(_SECONDS_PER_LOOK)
        text = journal.stacks[before:]
        same = same + 1 if text and text == last else 0
        last = text
    return last


def _python(text: str) -> Iterator[str]:
    """Yield the innermost frames of each thread, up to the worker's own. The main thread is last in the text."""
    bounds = [*(found.start() for found in _PYTHON_THREAD.finditer(text)), len(text)]
    threads = [text[start:end] for start, end in pairwise(bounds)]
    for number, thread in enumerate(reversed(threads[-_MOST_THREADS:])):
        yield "Python stack, innermost first:" if not number else "and of another thread:"
        frames = list(takewhile(lambda frame: not frame["file"].endswith(_OWN), _PYTHON_FRAME.finditer(thread)))
        for frame in frames[:_MOST_FRAMES]:
            yield f"  {'/'.join(Path(frame['file']).parts[-2:])}:{frame['line']}, in {frame['function']}"
        if len(frames) > _MOST_FRAMES:
            yield f"  and {len(frames) - _MOST_FRAMES} more"


def _native(text: str, of: str = "") -> Iterator[str]:
    """Yield the innermost native frames, up to those of the interpreter."""
    frames = [(Path(found["file"]).name, found["symbol"]) for found in _NATIVE_FRAME.finditer(text)][_HANDLER:]
    if not frames:
        return
    yield f"native stack{of}, innermost first:"
    shown = list(takewhile(lambda frame: not _INTERPRETER.match(frame[0]), frames))
    for file, symbol in shown[:_MOST_FRAMES]:
        yield f"  {demangled(symbol) or '(no symbol)'} ({file})"
    if len(shown) < len(frames):
        yield "  Python's interpreter"


def demangled(symbol: str) -> str:
    """Return a C++ symbol as it is written in source code, and any other symbol as it is."""
    try:
        demangle = getattr(ctypes.CDLL("libstdc++.so.6"), "__cxa_demangle")
    except (OSError, AttributeError):
        return symbol
    demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    found = demangle(symbol.encode(), None, None, ctypes.byref(status))
    if not found:
        return symbol
    text = ctypes.string_at(found).decode(errors="replace")
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return text


def _busy(pid: int) -> list[int]:
    """Return threads that run, other than the main one."""
    try:
        others = [task for task in Path(f"/proc/{pid}/task").iterdir() if task.name != str(pid)]
    except OSError:
        return []
    return [int(task.name) for task in others if _state(task / "stat") == "R"][: _MOST_THREADS - 1]


def _state(stat: Path) -> str:
    try:
        return stat.read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _wchan(pid: int) -> str:
    """Return the function of the operating system's kernel in which a process waits, if it can be read."""
    try:
        where = Path(f"/proc/{pid}/wchan").read_text().strip()
    except OSError:
        return ""
    return f", {where}" if where not in ("", "0") else ""


_SYS_TGKILL = {"x86_64": 234, "aarch64": 131}


def _send(pid: int, thread: int, number: int) -> None:
    """Send a signal to one thread of another process, for which Python has no function."""
    call = _SYS_TGKILL.get(os.uname().machine)
    if call is not None:
        ctypes.CDLL(None).syscall(call, pid, thread, number)
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
