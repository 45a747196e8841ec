"""How long a worker may be silent before it counts as hung.

Silence is measured in time that the worker had: time that its threads spent waiting for a processor, on a machine with
too much to do, does not count. A worker that compiles may be silent for longer.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

SECONDS_PER_LOOK = 1.0
_LEAST_PER_LOOK = 0.05
"""Time between two looks at a silent worker."""

_FAULTS_PER_SECOND = 200.0
"""Page faults of a process that allocates, as compilers do. A loop has none, but for those by which Linux balances
memory between sockets.
"""

_BUSY_SHARE = 0.2
"""Share of a processor's time that the processes that a worker started must use: compilers use all of it."""

_MOST_WAITING = 4
"""Multiple of `Patience.most` after which a worker hangs however long it had to wait for a processor."""


class Patience(NamedTuple):
    """Limits for a request, in seconds of silence.

    A worker hangs after `least`, counted from when it last seemed to compile, but after `most` in any case. `total`
    limits the whole request, which may launch kernels over and over.
    """

    least: float
    most: float
    total: float


class WorkerSample(NamedTuple):
    """A worker at `at` seconds of the clock.

    `waited` has the seconds that each of its threads waited for a processor so far, `faults` is its number of page
    faults, `helped` the seconds of processor time of the processes that it started.
    """

    at: float
    waited: dict[str, float]
    faults: int
    helped: float


class Silence:
    """The silence of the worker `pid` from now on. `begin_again` ends it, and begins another."""

    def __init__(
        self, pid: int, patience: Patience, *, clock: Callable[[], float] = time.monotonic, proc: Path = Path("/proc")
    ) -> None:
        self._pid = pid
        self._patience = patience
        self._clock = clock
        self._proc = proc
        self._began = clock()
        self._endless = False
        self.begin_again()

    def begin_again(self) -> None:
        """Begin again: the worker did something."""
        self._since = self._clock()
        self._lasted = 0.0
        self._compiled = 0.0
        self._last: WorkerSample | None = None

    @property
    def limit(self) -> float:
        """The seconds after which the worker hangs, as it seems now: of silence, or in all if it launches for ever."""
        if self._endless:
            return self._patience.total
        return min(self._compiled + self._patience.least, self._patience.most)

    @property
    def until_look(self) -> float:
        """The seconds until the next look is due."""
        return min(SECONDS_PER_LOOK, max(_LEAST_PER_LOOK, self.limit - self._lasted))

    def is_hang(self) -> bool:
        """Look at the worker. Returns whether it hangs."""
        sample = _sampled(self._pid, self._clock(), self._proc)
        if self._last is None:
            # A request that is answered within a look costs nothing.
            self._lasted = sample.at - self._since
        else:
            self._add(self._last, sample)
        self._last = sample
        waited_for_long = sample.at - self._since >= _MOST_WAITING * self._patience.most
        self._endless = sample.at - self._began >= self._patience.total
        return self._lasted >= self.limit or waited_for_long or self._endless

    def _add(self, before: WorkerSample, now: WorkerSample) -> None:
        seconds = now.at - before.at
        waiting = max((now.waited[thread] - before.waited.get(thread, 0.0) for thread in now.waited), default=0.0)
        self._lasted += seconds - min(seconds, waiting)
        had = max(seconds - waiting, 1e-3)
        faults, helped = (now.faults - before.faults) / had, (now.helped - before.helped) / seconds if seconds else 0.0
        if faults > _FAULTS_PER_SECOND or helped > _BUSY_SHARE:
            self._compiled = self._lasted


def _sampled(pid: int, at: float, proc: Path) -> WorkerSample:
    """Look at a worker. Numbers that can't be read count as 0."""
    waited = {task.name: _waited(task) for task in _folders(proc / str(pid) / "task")}
    own = _stat(proc / str(pid))
    # Fields 10, 12, 16 and 17 of proc_pid_stat(5), without the first two: faults, and time of children that ended.
    faults, ended = int(own[7]) + int(own[9]), int(own[13]) + int(own[14])
    return WorkerSample(at, waited, faults, (ended + sum(_helpers(pid, proc))) / os.sysconf("SC_CLK_TCK"))


def _helpers(pid: int, proc: Path) -> Iterator[int]:
    """Yield the ticks used by each process in a worker's group, which it leads, and by its ended children."""
    for folder in _folders(proc):
        fields = _stat(folder)
        if folder.name != str(pid) and fields[2] == str(pid):
            yield sum(map(int, fields[11:15]))


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.name.isdecimal()]
    except OSError:
        return []


def _waited(task: Path) -> float:
    try:
        return int((task / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _stat(folder: Path) -> list[str]:
    """Return the fields of a process after its name, which may contain anything; zeros if it has ended."""
    try:
        return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ["0"] * 50
