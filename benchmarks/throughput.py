"""Throughput of campaigns: the gain of a second job, and the cost of the event log and the corpus."""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import median
from typing import ParamSpec, Self, TypeVar
from unittest.mock import patch

import click
from measurement import backends_option, count_option, seed_option, show

from attnfuzz.harness.campaign.engine import Campaign
from attnfuzz.harness.campaign.events import CaseKept, JobFailed, Progress, SuspectSeen
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.jobs import JobProcesses
from attnfuzz.harness.campaign.log import EventLog
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.prepare import prepare
from attnfuzz.harness.corpus import Corpus
from attnfuzz.harness.findings.archive import Archive
from attnfuzz.harness.findings.environment import environment
from attnfuzz.harness.sandbox.check import render_failure
from attnfuzz.harness.search.messages import AnyMessage, JobSetup

JOBS = (1, 2)

PLANNED_SECONDS = 3600.0
"""The planned time. A campaign planned for seconds would spend less on kept cases and on shrinking than this."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Reading:
    """A campaign's work in `seconds`: the time in the log's calls, in its own thread's syncs, and in keeping cases."""

    seconds: float
    cases: int
    kept: int
    log_bytes: int
    log: float
    syncs: float
    keeping: float

    def __sub__(self, before: "Reading") -> "Reading":
        """Return the difference from `before`."""
        return Reading(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))

    @property
    def rate(self) -> float:
        """Cases per second."""
        return self.cases / self.seconds


@click.command()
@backends_option()
@count_option("--seconds", 30, "How long each campaign is measured.")
@count_option("--rounds", 3, "Campaigns of each number of jobs.")
@seed_option
def main(*, backends: tuple[str, ...], seconds: int, rounds: int, seed: int) -> None:
    """Run campaigns with 1 and with 2 jobs in turn, each on one backend and in a new home.

    A campaign is measured from the first progress event after all of its jobs have judged a case. It starts with an
    empty corpus: it keeps more cases and reports more coverage than a campaign later in a night.
    """
    prepare(backends, print)
    for backend in backends:
        runs: dict[int, list[Reading]] = {jobs: [] for jobs in JOBS}
        for index in range(rounds):
            for jobs in JOBS if index % 2 else reversed(JOBS):
                runs[jobs].append(_campaign(backend, jobs, seconds=seconds, seed=seed + index))
        columns = [_column(runs[jobs], runs[1]) for jobs in JOBS]
        show(f"{backend}: medians over the rounds (lowest to highest)", ("", "1 job", "2 jobs"), _rows(columns))


def _rows(columns: list[dict[str, str]]) -> list[list[str]]:
    return [[label, *(column[label] for column in columns)] for label in columns[0]]


def _column(runs: list[Reading], alone: list[Reading]) -> dict[str, str]:
    ratios = (run.rate / one.rate for run, one in zip(runs, alone, strict=True))
    return {
        "cases per second": _spread((run.rate for run in runs), "{:.1f}"),
        "over 1 job in the same round": _spread(ratios, "{:.2f}"),
        "event log: share of the time": _spread((run.log / run.seconds for run in runs), "{:.3%}"),
        "  syncs beside it": _spread((run.syncs / run.seconds for run in runs), "{:.3%}"),
        "  bytes per case": _spread((run.log_bytes / run.cases for run in runs), "{:.0f}"),
        "keeping the corpus: share of the time": _spread((run.keeping / run.seconds for run in runs), "{:.2%}"),
        "  cases kept of 1,000": _spread((run.kept / run.cases * 1000 for run in runs), "{:.0f}"),
    }


def _spread(values: Iterable[float], form: str) -> str:
    ordered = sorted(values)
    middle = form.format(median(ordered))
    return f"{middle} ({form.format(ordered[0])} to {form.format(ordered[-1])})" if len(ordered) > 1 else middle


class _Jobs(JobProcesses):
    """Job processes. `active` has the jobs that have sent a message since they started and are therefore warm."""

    def __init__(self, count: int, setup: JobSetup) -> None:
        super().__init__(count, setup)
        self.active: set[int] = set()

    def next_message(self, timeout: float) -> tuple[int, AnyMessage] | None:
        """Return the next message and record that its job is active."""
        received = super().next_message(timeout)
        if received is not None:
            self.active.add(received[0])
        return received


class _Stopwatch:
    """Adds up the `seconds` of the actions that it times."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timing(self, action: Callable[P, R]) -> Callable[P, R]:
        """Return `action` with a timer around it."""

        def timed(*args: P.args, **kwargs: P.kwargs) -> R:
            start = time.perf_counter()
            try:
                return action(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


class _Costs:
    """The log at `path`, with stopwatches on it and on the writes of `corpus`."""

    def __init__(self, path: Path, corpus: Corpus) -> None:
        self._path = path
        self._logging, self._syncs, self._keeping = _Stopwatch(), _Stopwatch(), _Stopwatch()
        self._open = ExitStack()
        for name in ("keep", "needed", "keep_records", "keep_for_coverage"):
            self._open.enter_context(patch.object(corpus, name, self._keeping.timing(getattr(corpus, name))))
        self._open.enter_context(patch.object(os, "fsync", _outside_main(os.fsync, self._syncs.timing(os.fsync))))
        self.log = self._logging.timing(self._open.enter_context(EventLog(path)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()

    def read(self, at: float, cases: int, kept: int) -> Reading:
        """Return the costs so far."""
        size = self._path.stat().st_size
        return Reading(at, cases, kept, size, self._logging.seconds, self._syncs.seconds, self._keeping.seconds)


def _outside_main(plain: Callable[[int], None], timed: Callable[[int], None]) -> Callable[[int], None]:
    """Return `timed` for the log's own thread: a sync of the main thread is already part of the call that makes it."""

    def fsync(descriptor: int) -> None:
        (plain if threading.current_thread() is threading.main_thread() else timed)(descriptor)

    return fsync


def _campaign(backend: str, jobs: int, *, seconds: int, seed: int) -> Reading:
    """Run a campaign as `attnfuzz fuzz` does, without a terminal, and stop it after `seconds` measured seconds."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        plan = Plan(
            backends=(backend,),
            examples=None,
            seconds=PLANNED_SECONDS,
            seed=seed,
            jobs=jobs,
            contract="declared",
            guard=None,
            out=home.path,
        )
        setup = JobSetup(backends=plan.backends, contract=plan.contract, guard=plan.guard, alpha=plan.alpha_per_output)
        with home.locked(), _Jobs(jobs, setup) as processes:
            return _measured(plan, home, processes, seconds)


def _measured(plan: Plan, home: Home, jobs: _Jobs, seconds: int) -> Reading:
    name, versions = home.new_id(), environment()
    corpus = Corpus(home.corpus)
    stop = threading.Event()
    engine = Campaign(
        plan,
        jobs,
        campaign=name,
        archive=Archive(home.findings, home.unconfirmed, campaign=name, environment=versions),
        corpus=corpus,
        ledger=None,
        environment=versions,
        stop=stop,
        render=render_failure,
    )
    begun: Reading | None = None
    cases = kept = 0
    with _Costs(home.log(name), corpus) as costs:
        for event in engine.events():
            costs.log(event)
            match event:
                case Progress() if not stop.is_set():
                    cases += event.tally.cases
                    reading = costs.read(event.at, cases, kept)
                    if begun is None and len(jobs.active) == jobs.count:
                        begun = reading
                    elif begun is not None and reading.seconds - begun.seconds >= seconds:
                        stop.set()
                case CaseKept():
                    kept += 1
                case SuspectSeen():
                    message = event.observation.message
                    raise click.ClickException(f"{plan.backends[0]} fails, choose one that passes: {message}")
                case JobFailed():
                    raise click.ClickException(event.text)
    assert begun is not None
    return reading - begun


if __name__ == "__main__":
    main()
