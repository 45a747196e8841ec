"""Stands for a machine out of memory: kills processes at random with SIGKILL."""

import contextlib
import os
import random
import select
import signal
from collections.abc import Callable, Sequence
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes that `pid` started and that were not waited for; none if it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def command_line(pid: int) -> str:
    """How `pid` was started; nothing if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def running(pids: Sequence[int]) -> list[int]:
    """Those that are no zombies."""
    alive = []
    for pid in pids:
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            alive += [pid] if state != "Z" else []
    return alive


class Killer:
    """Kills one of `victims()` at a time, chosen at random; `count` says how many."""

    def __init__(self, victims: Callable[[], Sequence[int]], *, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.count = 0
        self._victims = victims

    def strike(self) -> None:
        """Kill one, if there is any, and wait until it is dead: on a busy machine it could else be given more work."""
        victims = running(self._victims())
        if not victims:
            return
        with contextlib.suppress(ProcessLookupError):
            victim = os.pidfd_open(self.random.choice(victims))
            try:
                signal.pidfd_send_signal(victim, signal.SIGKILL)
                self.count += 1
                select.select([victim], [], [])
            finally:
                os.close(victim)
