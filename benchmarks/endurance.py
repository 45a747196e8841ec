"""Endurance of a campaign: whether it keeps its speed and its memory, as cases per second and MiB over time."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import click
from measurement import backends_option, count_option, show

from attnfuzz.harness.campaign.events import CampaignStarted, Progress
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.log import LogError, read_log
from attnfuzz.harness.cli.options import duration

FIRST_SECONDS = 60.0
"""Length of the baseline interval for the last quarter, at most a quarter of the time."""

SECONDS_PER_LOOK = 1.0

KINDS = ("main", "jobs", "nurseries", "workers")


@dataclass(frozen=True)
class Memory:
    """MiB held by the processes of a campaign at one time, by kind of process. Shared pages count in proportion."""

    at: float
    main: float
    jobs: float
    nurseries: float
    workers: float

    @property
    def all(self) -> float:
        """Memory of all processes."""
        return self.main + self.jobs + self.nurseries + self.workers


@click.command()
@backends_option()
@click.option("--time", "seconds", type=duration, default="2m", show_default=True, help="How long to search.")
@count_option("--jobs", 1, "Processes that search at the same time.")
@count_option("--points", 4, "Intervals to print, all of the same length.")
@click.option(
    "--log",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Run nothing: show the cases per second of the campaign with this event log.",
)
def main(*, backends: tuple[str, ...], seconds: float, jobs: int, points: int, log: Path | None) -> None:
    """Run `attnfuzz fuzz` on correct backends and watch its processes from outside.

    Intervals begin with the first progress, when a job is warm. The memory of an interval is the largest value seen in
    it.
    """
    if log is not None:
        rates = _Rates(log)
        rows = [[_words(*interval), f"{rates.between(*interval):.1f}"] for interval in rates.parts(points)]
        show("Endurance", ("", "cases/s"), rows)
    else:
        with tempfile.TemporaryDirectory() as folder:
            home = Home(Path(folder) / "home")
            seen = _watch(_command(home, backends, seconds, jobs))
            (campaign,) = home.ids()
            rates = _Rates(home.log(campaign))
        seen = [replace(memory, at=memory.at - rates.epoch) for memory in seen]
        rows = [_row(rates, seen, *interval) for interval in rates.parts(points)]
        show("Endurance", ("", "cases/s", *KINDS, "all"), rows)
    compared = f"the last quarter over the first {rates.first[1] - rates.first[0]:.0f} s"
    print(f"cases per second, {compared}: {rates.between(*rates.last) / rates.between(*rates.first):.2f}")
    if log is None:
        print(f"most memory, {compared}: {_most(seen, *rates.last) / _most(seen, *rates.first):.2f}")


class _Rates:
    """Cases per second over the time of a campaign, from its first progress to its last. The campaign began at `epoch`.

    `first` and `last` are the intervals to compare.
    """

    def __init__(self, log: Path) -> None:
        try:
            events = read_log(log)
        except LogError as error:
            raise click.ClickException(str(error)) from error
        self.epoch = next(event.time for event in events if isinstance(event, CampaignStarted))
        self._progress = [event for event in events if isinstance(event, Progress)]
        times = [event.at for event in self._progress] or [0.0]
        self._begun, self._ended = times[0], times[-1]
        quarter, *_, self.last = self.parts(4)
        self.first = (self._begun, min(self._begun + FIRST_SECONDS, quarter[1]))
        if not any(self.first[0] < at <= self.first[1] for at in times):
            raise click.ClickException("too little was run to compare rates: give more --time, or another --log")

    def parts(self, count: int) -> list[tuple[float, float]]:
        """Divide the whole time into `count` equal parts."""
        edges = [self._begun + (self._ended - self._begun) * part / count for part in range(count)]
        return list(pairwise([*edges, self._ended]))

    def between(self, since: float, until: float) -> float:
        """Return the rate from `since` to `until`. A progress event covers the time before it."""
        return sum(event.tally.cases for event in self._progress if since < event.at <= until) / (until - since)


def _command(home: Home, backends: Sequence[str], seconds: float, jobs: int) -> list[str]:
    options = ["--time", f"{seconds:.0f}s", "--jobs", str(jobs), "--home", str(home.path)]
    options += [word for name in backends for word in ("--backend", name)]
    return [sys.executable, "-m", "attnfuzz.harness.cli.main", "fuzz", *options]


def _watch(command: list[str]) -> list[Memory]:
    """Run a command to its end and watch the memory of its processes."""
    seen = []
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        seen.append(_memory(process.pid, time.time()))
        time.sleep(SECONDS_PER_LOOK)
    if process.returncode:
        raise click.ClickException(f"the campaign ended with status {process.returncode}")
    return seen


def _memory(main: int, at: float) -> Memory:
    jobs = _children([main])
    nurseries = _children(jobs)
    generations = ([main], jobs, nurseries, _children(nurseries))
    return Memory(at, *(sum(map(_mebibytes, generation)) for generation in generations))


def _children(pids: list[int]) -> list[int]:
    found: list[int] = []
    for pid in pids:
        for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, _read(tasks).split())
    return found


def _mebibytes(pid: int) -> float:
    """Return the proportional set size of a process in MiB, or 0 if it has ended."""
    sizes = (
        line.split()[1] for line in _read(Path(f"/proc/{pid}/smaps_rollup")).splitlines() if line.startswith("Pss:")
    )
    return int(next(sizes, "0")) / 1024


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _row(rates: _Rates, seen: list[Memory], since: float, until: float) -> list[str]:
    """Return the rate of an interval and the most memory in it."""
    during = _during(seen, since, until)
    most = (max(getattr(memory, kind) for memory in during) for kind in KINDS)
    mebibytes = [f"{mib:.0f} MiB" for mib in (*most, _most(seen, since, until))]
    return [_words(since, until), f"{rates.between(since, until):.1f}", *mebibytes]


def _most(seen: list[Memory], since: float, until: float) -> float:
    return max(memory.all for memory in _during(seen, since, until))


def _during(seen: list[Memory], since: float, until: float) -> list[Memory]:
    return [memory for memory in seen if since <= memory.at < until] or seen[-1:]


def _words(since: float, until: float) -> str:
    return f"{since:.0f} to {until:.0f} s"


if __name__ == "__main__":
    main()
