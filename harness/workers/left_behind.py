"""Processes that could not be ended: inside a driver that hangs, even SIGKILL has no effect.

Nothing waits for them. The command line names those that still exist when it ends.
"""

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

from attnfuzz.harness.verdict.wording import count

_SECONDS_TO_DIE = 2.0


class LeftProcess(NamedTuple):
    """A process, by its id and its start in ticks since boot: ids are reused."""

    pid: int
    started: int


_noted: set[LeftProcess] = set()


def note(pid: int) -> None:
    """Note a process that was killed and did not end."""
    if (process := running(pid)) is not None:
        _noted.add(process)


def words() -> str:
    """Return a line that names the noted processes that still exist, or "" if there are none."""
    left = sorted(process.pid for process in _noted if running(process.pid) == process)
    if not left:
        return ""
    names = ", ".join(map(str, left))
    return (
        f"{count(len(left), 'process', 'processes')} could not be ended, and {'is' if len(left) == 1 else 'are'} left "
        f"behind ({names}): the GPU's driver does not let go of them"
    )


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a child and its group, which it leads. It is left behind if it does not end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(_SECONDS_TO_DIE)
    except subprocess.TimeoutExpired:
        note(process.pid)


def running(pid: int) -> LeftProcess | None:
    """Return a process that has not ended, or None. A zombie has ended."""
    found = _with_session(pid)
    return None if found is None else found[0]


def of_session(session: int) -> list[LeftProcess]:
    """Return the processes of a session that have not ended."""
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return [found[0] for found in map(_with_session, pids) if found is not None and found[1] == session]


def _with_session(pid: int) -> tuple[LeftProcess, int] | None:
    try:
        # The name, in parentheses, may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    # Fields 3, 6 and 22 of proc_pid_stat(5).
    return None if fields[0] in "ZX" else (LeftProcess(pid, int(fields[19])), int(fields[3]))


def kill(process: LeftProcess) -> None:
    """Send SIGKILL to a process, unless its id belongs to another one by now."""
    with contextlib.suppress(OSError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if running(process.pid) == process:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)
