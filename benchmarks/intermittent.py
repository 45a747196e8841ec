"""Campaigns on intermittent faults: whether they are filed, the stated rate against the true one, and replays.

Each fault is planted in one of our CPU backends and searched by a campaign of one job. To measure the true rate of a
finding, its case runs many more times under its conditions. A replay is `attnfuzz replay FINDING`, and its exit code
counts.
"""

import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
from measurement import count_option, seed_option, show

from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.run import run
from attnfuzz.harness.findings.archive import read_records
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.sandbox.again import show_again
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.recurrence import MOST_SECONDS, percent

BACKENDS = Path(__file__).parents[1] / "tests" / "fakes" / "intermittent_backend.py"

PLANTED = (
    "RANDOM_1_NAN",
    "RANDOM_17_NAN",
    "RANDOM_17_WRONG",
    "RANDOM_17_FAULT",
    "RANDOM_100_NAN",
    "RANDOM_1000_NAN",
    "RANDOM_1000_FAULT",
    "EVERY_17_NAN",
    "EVERY_17_FAULT",
    "EVERY_100_NAN",
    "EVERY_1000_NAN",
    "AFTER_1_NAN",
)


@dataclass(frozen=True)
class _Filed:
    """A campaign's home, with its findings and the number of unconfirmed failures."""

    home: Home
    findings: list[Record]
    unconfirmed: int
    seconds: float


@click.command()
@click.option("--planted", multiple=True, default=PLANTED, show_default=True, metavar="NAME", help="Fault to plant.")
@count_option("--examples", 1000, "Cases that each campaign draws.")
@count_option("--campaigns", 1, "Campaigns of each.")
@count_option("--replays", 20, "Replays of each finding.")
@count_option("--findings", 3, "Findings of each campaign that are measured.")
@count_option("--runs", 1000, "Runs that measure the true rate, at most.")
@seed_option
def main(
    *, planted: tuple[str, ...], examples: int, campaigns: int, replays: int, findings: int, runs: int, seed: int
) -> None:
    """Plant intermittent faults, and measure their outcomes."""
    rows = []
    for name in planted:
        for number in range(campaigns):
            found = _measured(name, examples, seed + number, (replays, findings, runs))
            for row in found:
                # The benchmark takes hours, so print the results so far.
                click.echo("  ".join(row), err=True)
            rows += found
    columns = ("planted", "s", "filed", "lost", "seen", "said", "true", "cases before", "replays that exit 1")
    show("Faults that come and go", columns, rows)


def _measured(name: str, examples: int, seed: int, counts: tuple[int, int, int]) -> list[list[str]]:
    folder = Path(tempfile.mkdtemp(prefix="intermittent-"))
    try:
        filed = _campaign(f"{BACKENDS}:{name}", folder, examples, seed)
        return [[name, f"{filed.seconds:.0f}", *cells] for cells in _rows(filed, *counts)]
    finally:
        shutil.rmtree(folder)


def _campaign(backend: str, folder: Path, examples: int, seed: int) -> _Filed:
    ended = run(Plan(backends=(backend,), out=folder, examples=examples, seed=seed))
    home = Home(folder)
    return _Filed(home, read_records(home.findings)[0], len(ended.standing.unconfirmed), ended.standing.at)


def _rows(filed: _Filed, replays: int, findings: int, runs: int) -> list[list[str]]:
    count = [str(len(filed.findings)), str(filed.unconfirmed)]
    if not filed.findings:
        return [[*count, "", "", "", "", ""]]
    return [[*count, *_finding(record, replays, runs)] for record in filed.findings[:findings]]


def _finding(record: Record, replays: int, runs: int) -> list[str]:
    with Runner([record.case.backend]) as runner:
        if record.recurrence is None:
            failed = sum(bool(runner.verdict(record.case).failures) for _ in range(replays))
            return ["always", "100%", "", "0", f"{failed} of {replays}"]
        known = record.recurrence
        show = partial(show_again, runner, record.case, record.observation, known, record.before, seconds=MOST_SECONDS)
        shown = sum(show().failed > 0 for _ in range(replays))
        # A run after a history takes as long as all cases of the history.
        truth = show(times=max(1, runs // (1 + known.history)))
    low, high = known.interval
    said = (
        "seen once" if known.seen_once else f"{percent(known.failed / known.runs)} ({percent(low)} to {percent(high)})"
    )
    true = f"{percent(truth.failed / truth.runs)} of {truth.runs}"
    return [f"{known.failed} of {known.runs} {known.way.name}", said, true, str(known.history), f"{shown} of {replays}"]


if __name__ == "__main__":
    main()
