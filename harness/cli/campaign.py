"""Runs a campaign for the command line: prepares, lets the events flow to log and terminal, gives the exit code."""

import contextlib
import errno
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import FrameType

from rich.console import Console

from attnfuzz.harness.backends.engines import engine_of
from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.campaign.engine import Campaign
from attnfuzz.harness.campaign.home import Home, HomeError
from attnfuzz.harness.campaign.jobs import JobProcesses, Jobs
from attnfuzz.harness.campaign.log import EventLog
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.ray_jobs import RayJobs
from attnfuzz.harness.campaign.room import check_room
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.cli.display import Display, display_on
from attnfuzz.harness.cli.exits import BadInput, Exit
from attnfuzz.harness.cli.given import tell
from attnfuzz.harness.cli.noise_words import noise_words, uncalibrated
from attnfuzz.harness.cli.resume import Past, last_campaign, plan_again
from attnfuzz.harness.cli.summary import summarise
from attnfuzz.harness.cli.terminal import Terminal
from attnfuzz.harness.corpus import Corpus, open_database
from attnfuzz.harness.export import CannotExport, export_script
from attnfuzz.harness.findings.archive import Archive
from attnfuzz.harness.findings.environment import environment
from attnfuzz.harness.findings.ledger import Ledger
from attnfuzz.harness.report.files import Written, write_reports
from attnfuzz.harness.sandbox.check import CannotRun, Runner, render_failure
from attnfuzz.harness.search.messages import JobSetup
from attnfuzz.harness.verdict.wording import clock, count
from attnfuzz.harness.workers import core_dumps
from attnfuzz.kernels.gpu import modules
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.reference.case import Case
from attnfuzz.reference.device import Device


def start_campaign(plan: Plan) -> Exit:
    """Run `plan` as a new campaign of its home, and print what comes of it. Raises what `main` knows as mistakes."""
    ledger = _checked(plan)
    home = Home(plan.out)
    with home.locked():
        return _run(plan, home, ledger, past=None)


def run_campaign(plan: Plan) -> tuple[str, Standing]:
    """Run `plan` as a new campaign of its home, and leave it to the caller to say what came of it.

    Gives its name in its home, where its reports lie. Raises as `start_campaign`.
    """
    ledger = _checked(plan)
    home = Home(plan.out)
    with home.locked():
        campaign, standing, _ = _carry_out(Terminal(), plan, home, ledger, past=None)
    return campaign, standing


def resume_campaign(
    folder: Path, *, jobs: int | None, ray: str | None, database: str | None, ledger: Path | None
) -> Exit:
    """Go on with the last campaign of the home in `folder`. Raises as `start_campaign`.

    One that is finished has its reports written again: it may have been killed before they were.
    """
    home = Home(folder)
    if not home.ids():
        raise HomeError(f"{folder} has no campaign to go on with: name a folder that was given as --out")
    with home.locked():
        past = last_campaign(home)
        if past.finished:
            return _report_again(home, past)
        plan = plan_again(past, home, jobs=jobs, ray=ray, database=database, ledger=ledger)
        return _run(plan, home, _checked(plan), past=past)


def prepare(backends: Sequence[str]) -> None:
    """Find out what can't run, and compile, before there are jobs: they would all do it, and out of sight."""
    resolved = {name: resolve(name) for name in backends}
    for name, backend in resolved.items():
        why_not = backend.missing()
        if why_not is not None:
            raise CannotRun(f"{name} can't run here: {why_not}")
    if any(one.capability.device is Device.CUDA for one in resolved.values()):
        # Makes the folder of core dumps, if one is named: a job would tell out of sight that it can't be made.
        core_dumps.settings()
    # Those of all backends at the same time; what is left to each is then quick.
    modules.build((each for one in resolved.values() if isinstance(one, GpuBackend) for each in one.modules()), tell)
    for backend in resolved.values():
        backend.prepare(tell)
    for name in resolved:
        engine = engine_of(name)
        if engine is not None and engine.untried(name):
            _rehearse(name)


def _rehearse(name: str) -> None:
    """Start workers once for a release that nobody tried: a job that can't would leave a campaign behind."""
    with Runner([name]) as runner:
        runner.start(name)


def _checked(plan: Plan) -> Ledger:
    """The ledger, after everything that can be wrong with `plan` was found out, before anything is written."""
    open_database(plan.database, tell)
    ledger = Ledger() if plan.ledger is None else Ledger.load(plan.ledger)
    prepare(plan.backends)
    if plan.ray is None:
        check_room(plan.jobs, plan.backends)
    return ledger


def _run(plan: Plan, home: Home, ledger: Ledger, *, past: Past | None) -> Exit:
    console = Terminal()
    _open(console, plan, past)
    _, standing, written = _carry_out(console, plan, home, ledger, past=past, tell=partial(summarise, console))
    return _concluded(console, home, standing, written)


def _report_again(home: Home, past: Past) -> Exit:
    """Write the reports of a campaign that is finished."""
    console = Console(highlight=False)
    text = f"Campaign {past.campaign} is finished; its reports are written again. Begin another without --resume."
    console.print(text, soft_wrap=True, markup=False)
    standing = Standing.of(past.events)
    summarise(console, standing)
    return _concluded(console, home, standing, _written(home, past.campaign, standing))


def _concluded(console: Console, home: Home, standing: Standing, written: Written) -> Exit:
    """Say where the reports are, and what to do; the exit code of the campaign."""
    console.print(f"Report: {written.html}", soft_wrap=True, markup=False)
    for path in written.issues:
        console.print(f"Text for an issue: {path}", soft_wrap=True, markup=False)
    if standing.failure is not None:
        text = f"{standing.failure.text}\nThe harness itself failed. What was found before is kept; {_go_on(home)}"
        Terminal(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)
        return Exit.FAILED
    if standing.finished is not None and standing.finished.interrupted:
        console.print(f"Interrupted. What was found before is kept; {_go_on(home)}", soft_wrap=True, markup=False)
        return Exit.INTERRUPTED
    return Exit.CLEAN if standing.clean else Exit.FOUND


def _carry_out(
    console: Console,
    plan: Plan,
    home: Home,
    ledger: Ledger,
    *,
    past: Past | None,
    tell: Callable[[Standing], None] = lambda _: None,
) -> tuple[str, Standing, Written]:
    """Run the campaign in sight, `tell` of its end, and write its reports; its name, where it stands, and these."""
    standing = Standing.of(past.events if past else ())
    with _stop_on_signals() as stop:
        with _full_disk(_go_on(home)):
            show = display_on(console, standing)
            campaign = _search(plan, home, ledger, past, stop=stop, standing=standing, display=show)
        tell(standing)
        written = _written(home, campaign, standing)
    return campaign, standing, written


def _written(home: Home, campaign: str, standing: Standing) -> Written:
    with _full_disk(f"write the report with: attnfuzz report {shlex.quote(str(home.path))}"):
        return write_reports(home, campaign, standing)


def _go_on(home: Home) -> str:
    return f"go on with: attnfuzz fuzz --resume {shlex.quote(str(home.path))}"


def _search(
    plan: Plan,
    home: Home,
    ledger: Ledger,
    past: Past | None,
    *,
    stop: threading.Event,
    standing: Standing,
    display: Display,
) -> str:
    """Run the campaign until it ends or `stop` is set, and return its name in its home."""
    corpus = Corpus(home.corpus)
    versions = environment()
    with _jobs(plan) as jobs:
        # What can go wrong so far leaves no campaign behind.
        campaign = past.campaign if past else home.new_id()
        engine = Campaign(
            plan,
            jobs,
            campaign=campaign,
            archive=Archive(home.findings, home.unconfirmed, campaign=campaign, environment=versions),
            corpus=corpus,
            ledger=ledger,
            environment=versions,
            past_events=past.events if past else (),
            torn_bytes=past.torn_bytes if past else 0,
            stop=stop,
            render=render_failure,
            export=_export,
        )
        with EventLog(home.log(campaign), torn_bytes=past.torn_bytes if past else 0) as log, display:
            for event in engine.events():
                for handle in (log, standing, display):
                    handle(event)
    return campaign


def _jobs(plan: Plan) -> AbstractContextManager[Jobs]:
    setup = JobSetup(
        backends=plan.backends,
        contract=plan.contract,
        guard=plan.guard,
        alpha=plan.alpha_per_output,
        database=plan.database,
    )
    return JobProcesses(plan.jobs, setup) if plan.ray is None else RayJobs(plan.jobs, setup, address=plan.ray)


def _export(case: Case) -> str | None:
    """The stand-alone script of a case; None for kernels whose source can't be carried along."""
    try:
        return export_script(case)
    except CannotExport:
        return None


def _open(console: Console, plan: Plan, past: Past | None) -> None:
    """Say what is about to be done, and which backends would be judged better after a calibration."""
    if past:
        console.print(
            f"Going on with campaign {past.campaign} after {clock(past.events[-1].at)}.", soft_wrap=True, markup=False
        )
    budget = f"{plan.examples:,} examples each" if plan.examples is not None else clock(plan.seconds or 0)
    console.print(
        f"Fuzzing {', '.join(plan.backends)}: {budget}, {count(plan.jobs, 'job')}, seed {plan.seed}, "
        f"alpha {plan.alpha:g}.",
        soft_wrap=True,
        markup=False,
    )
    for name in plan.backends:
        if uncalibrated(resolve(name)):
            console.print(f"{name} is {noise_words(resolve(name))};", soft_wrap=True, markup=False)
            console.print(f"  attnfuzz calibrate --backend {name}", soft_wrap=True, markup=False)


@contextlib.contextmanager
def _full_disk(then: str) -> Iterator[None]:
    """Say of a disk that takes nothing more that `then` is what comes after putting that right."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}:
            raise
        where = f" ({error.filename})" if error.filename else ""
        raise BadInput(f"{error.strerror}{where}: what was filed before is kept. Make room, then {then}") from error


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, and SIGTERM, by which runners stop a job. A second Ctrl-C raises KeyboardInterrupt."""
    stop = threading.Event()

    def interrupt(signum: int, _frame: FrameType | None) -> None:
        if stop.is_set() and signum == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {signum: signal.signal(signum, interrupt) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
