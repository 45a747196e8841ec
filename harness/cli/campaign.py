"""Runs a campaign for the command line: prepares, lets the events flow to log and terminal, gives the exit code."""

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

from rich.console import Console

from attnfuzz.harness.campaign.engine import Campaign
from attnfuzz.harness.campaign.jobs import JobProcesses
from attnfuzz.harness.campaign.log import EventLog
from attnfuzz.harness.campaign.messages import Setup
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.check import CannotRun, render_failure
from attnfuzz.harness.cli.display import display_on
from attnfuzz.harness.cli.exits import Exit
from attnfuzz.harness.cli.given import tell
from attnfuzz.harness.cli.noise_words import noise_words, uncalibrated
from attnfuzz.harness.cli.scoreboard import Scoreboard
from attnfuzz.harness.cli.summary import summarise
from attnfuzz.harness.cli.wording import clock, count
from attnfuzz.harness.export import CannotExport, export_script
from attnfuzz.harness.registry import resolve
from attnfuzz.reference.case import Case

LOG_NAME = "events.ndjson"


def run_campaign(plan: Plan) -> Exit:
    """Run `plan` and print what comes of it. Raises UnknownBackend, BackendFileError, CannotRun or OSError."""
    console = Console(highlight=False)
    prepare(plan.backends)
    board = Scoreboard()
    display = display_on(console, board)
    console.print(_opening(plan))
    for name in plan.backends:
        if uncalibrated(resolve(name)):
            console.print(f"{name} is {noise_words(resolve(name))};", soft_wrap=True, markup=False)
            console.print(f"  attnfuzz calibrate --backend {name}", soft_wrap=True, markup=False)
    setup = Setup(backends=plan.backends, contract=plan.contract, guard=plan.guard, alpha=plan.alpha_per_output)
    with (
        contextlib.closing(EventLog(plan.out / LOG_NAME)) as log,
        _stop_on_interrupt() as stop,
        JobProcesses(plan.jobs, setup) as jobs,
        display,
    ):
        for event in Campaign(plan, jobs, stop=stop, render=render_failure, export=_export).events():
            for handle in (log, board, display):
                handle(event)
    summarise(console, board)
    if board.failure is not None:
        Console(stderr=True).print(f"{board.failure.text}\nThe harness itself failed.", markup=False, highlight=False)
        return Exit.FAILED
    if stop.is_set():
        console.print("Interrupted. What was found before is kept.")
        return Exit.INTERRUPTED
    return Exit.FOUND if board.findings else Exit.CLEAN


def _export(case: Case) -> str | None:
    """The stand-alone script of a case; None for kernels whose source can't be carried along."""
    try:
        return export_script(case)
    except CannotExport:
        return None


def prepare(backends: Sequence[str]) -> None:
    """Find out what can't run, and compile, before there are jobs: they would all do it, and out of sight."""
    for name in backends:
        backend = resolve(name)
        why_not = backend.missing()
        if why_not is not None:
            raise CannotRun(f"{name} can't run here: {why_not}")
        backend.prepare(tell)


def _opening(plan: Plan) -> str:
    budget = f"{plan.examples:,} examples each" if plan.examples is not None else clock(plan.seconds or 0)
    return (
        f"Fuzzing {', '.join(plan.backends)}: {budget}, {count(plan.jobs, 'job')}, seed {plan.seed}, "
        f"alpha {plan.alpha:g}."
    )


@contextlib.contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets; a second Ctrl-C raises KeyboardInterrupt."""
    stop = threading.Event()

    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
