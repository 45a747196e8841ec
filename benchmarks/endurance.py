"""Whether a campaign stays as fast and as small as it began: cases per second and memory over time."""

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import click
from measurement import backends_option, count_option, show

from attnfuzz.harness.campaign.events import Progress
from attnfuzz.harness.campaign.home import LOG_NAME, Home
from attnfuzz.harness.campaign.log import read_log
from attnfuzz.harness.campaign.plan import parse_duration

FIRST_SECONDS = 60.0
"""What the last quarter is compared with."""

SECONDS_PER_LOOK = 1.0


@dataclass(frozen=True)
class Memory:
    """MiB that the processes of a campaign hold at a time, each kind added up; pages that they share count in parts."""

    at: float
    main: float
    jobs: float
    nurseries: float
    workers: float


@click.command()
@backends_option()
@click.option("--time", "duration", default="2m", show_default=True, help="How long to search, like 90s, 10m or 1h.")
@count_option("--jobs", 1, "Processes that search at the same time.")
@count_option("--points", 8, "Points in time to print.")
@click.option("--database", help="Hypothesis' example database for the campaign.")
def main(*, backends: tuple[str, ...], duration: str, jobs: int, points: int, database: str | None) -> None:
    """Run `attnfuzz fuzz` on correct backends and watch its processes from outside."""
    seconds = parse_duration(duration)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "home"
        command = [
            sys.executable,
            "-m",
            "attnfuzz.harness.cli.main",
            "fuzz",
            "--time",
            duration,
            "--jobs",
            str(jobs),
            "--out",
            str(out),
        ]
        command += [word for name in backends for word in ("--backend", name)]
        command += ["--database", database] if database else []
        seen = _watch(command)
        (campaign,) = Home(out).campaigns.iterdir()
        progress = [event for event in read_log(campaign / LOG_NAME) if isinstance(event, Progress)]
    if not progress:
        raise click.ClickException("nothing was run in that time: give more")
    begun = progress[0].at
    edges = [begun + (seconds - begun) * point / points for point in range(points + 1)]
    rows = [_row(progress, seen, since, until) for since, until in pairwise(edges)]
    show("Endurance", ("", "cases/s", "main", "jobs", "nurseries", "workers"), rows)
    first = _rate(progress, begun, min(begun + FIRST_SECONDS, edges[-1]))
    last = _rate(progress, begun + (seconds - begun) * 3 / 4, seconds)
    print(f"cases per second of the last quarter over those of the first {FIRST_SECONDS:.0f} s: {last / first:.2f}")


def _watch(command: list[str]) -> list[Memory]:
    """Run a command to its end, and look at the memory of its processes meanwhile."""
    seen = []
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    start = time.monotonic()
    while process.poll() is None:
        seen.append(_memory(process.pid, time.monotonic() - start))
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
    """The proportional set size of a process; 0 once it is gone."""
    sizes = (
        line.split()[1] for line in _read(Path(f"/proc/{pid}/smaps_rollup")).splitlines() if line.startswith("Pss:")
    )
    return int(next(sizes, "0")) / 1024


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _row(progress: list[Progress], seen: list[Memory], since: float, until: float) -> list[str]:
    """The rate of an interval, and the most memory in it."""
    during = [memory for memory in seen if since <= memory.at < until] or seen[-1:]
    most = (max(getattr(memory, kind) for memory in during) for kind in ("main", "jobs", "nurseries", "workers"))
    return [
        f"{since:.0f} to {until:.0f} s",
        f"{_rate(progress, since, until):.1f}",
        *(f"{mib:.0f} MiB" for mib in most),
    ]


def _rate(progress: list[Progress], since: float, until: float) -> float:
    return sum(event.cases for event in progress if since <= event.at < until) / (until - since)


if __name__ == "__main__":
    main()
