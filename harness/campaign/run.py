"""Running a campaign: check the plan, lock the home, start the jobs, and pass every event to log and handlers."""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple, TypedDict, cast

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.campaign.engine import Campaign
from attnfuzz.harness.campaign.events import Handler
from attnfuzz.harness.campaign.filing import Render
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.jobs import JobProcesses, Jobs
from attnfuzz.harness.campaign.log import EventLog
from attnfuzz.harness.campaign.margins import add_margins
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.prepare import check_room, lacking, prepare
from attnfuzz.harness.campaign.ray_jobs import RayJobs
from attnfuzz.harness.campaign.resume import Past
from attnfuzz.harness.campaign.sanitizing import SanitizedCampaign
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.campaign.tasks import lean_to_unreached
from attnfuzz.harness.corpus import Corpus
from attnfuzz.harness.family import family_with
from attnfuzz.harness.findings.archive import Archive
from attnfuzz.harness.findings.environment import environment
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.sandbox.check import render_failure
from attnfuzz.harness.sandbox.plain_check import check_users
from attnfuzz.harness.sanitizer.run import prepare as prepare_sanitized
from attnfuzz.harness.sanitizer.run import run as run_sanitized
from attnfuzz.harness.search.examples import check_drawn, drawn_capability
from attnfuzz.harness.search.messages import JobSetup
from attnfuzz.harness.workers.forked import dismiss
from attnfuzz.reference.device import Device


class _Common(TypedDict):
    """The arguments that both kinds of campaigns take."""

    campaign: str
    archive: Archive
    ledger: Ledger
    environment: Mapping[str, str]
    stop: threading.Event
    render: Render


class Ended(NamedTuple):
    """A campaign that ended: its name in its home, and its state."""

    campaign: str
    standing: Standing


def run(
    plan: Plan,
    handlers: Sequence[Handler] = (),
    *,
    stop: threading.Event | None = None,
    progress: Callable[[str], None] = lambda _: None,
    jobs: Jobs | None = None,
) -> Ended:
    """Run `plan` as a new campaign of its home. `stop` ends it early, `progress` gets the lines of `check_plan`.

    Each event is logged first, then passed to each of `handlers`, in order and in this thread. A handler that raises
    ends the campaign, which can be resumed. Campaigns of the same backends, one after the other, may share the `jobs`
    of `start_jobs`, if each ends when its examples are spent.

    Raises:
        UserError: something in the plan is wrong, missing or in use; nothing was written.
        OSError: a file can't be written.
    """
    ledger = check_plan(plan, progress, started=jobs is not None)
    home = Home(plan.out)
    with home.locked():
        return carry_out(plan, home, ledger, handlers, stop=stop, jobs=jobs)


def check_plan(plan: Plan, progress: Callable[[str], None], *, started: bool = False) -> Ledger:
    """Check `plan` and users' backends, unless its jobs are `started`, and return its ledger. Writes nothing.

    `progress` gets lines about compilation, and the ledger's remark.
    """
    ledger = Ledger() if plan.ledger is None else Ledger.load(plan.ledger)
    if ledger.remark is not None:
        progress(ledger.remark)
    for name in plan.backends:
        drawn_capability(name, plan.part)
        check_drawn(name, plan.part)
    if plan.sanitize:
        prepare_sanitized(plan.backends, progress)
    elif not started:
        # On a cluster, a backend has to run on some node; each node compiles for itself.
        elsewhere = {} if plan.ray is None else lacking(plan.backends)
        here = [name for name in plan.backends if name not in elsewhere]
        prepare(here, progress)
        check_users(here, progress)
        if plan.ray is None:
            check_room(plan.jobs, plan.backends)
    # Jobs fork their own.
    dismiss()
    return ledger


def start_jobs(plan: Plan, progress: Callable[[str], None]) -> AbstractContextManager[Jobs]:
    """Return the jobs of campaigns that differ from `plan` only in their seed and home."""
    return _jobs(plan, check_plan(plan, progress))


def carry_out(
    plan: Plan,
    home: Home,
    ledger: Ledger,
    handlers: Sequence[Handler],
    *,
    past: Past | None = None,
    stop: threading.Event | None = None,
    jobs: Jobs | None = None,
) -> Ended:
    """Run a checked plan in a locked home. Resumes `past` if given. Raises OSError."""
    versions = environment()
    standing = Standing.of(past.events if past else ())
    torn_bytes = past.torn_bytes if past else 0
    # A folder that is no corpus leaves no campaign behind, and starts no job.
    corpus = Corpus(home.corpus)
    with nullcontext() if plan.sanitize else _jobs(plan, ledger) if jobs is None else nullcontext(jobs) as running:
        # While the jobs start: with many backends, their first messages would wait for it.
        for name in plan.backends:
            capability = drawn_capability(name, plan.part)
            family_with(capability).possible_pairs(capability)
        # Errors so far leave no campaign behind.
        campaign = past.campaign if past else home.new_id()
        common = _Common(
            campaign=campaign,
            archive=Archive(home.findings, home.unconfirmed, campaign=campaign, environment=versions),
            ledger=ledger,
            environment=versions,
            stop=stop or threading.Event(),
            render=render_failure,
        )
        engine: Campaign | SanitizedCampaign
        if plan.sanitize:
            engine = SanitizedCampaign(plan, **common, run=run_sanitized)
        else:
            engine = Campaign(
                plan,
                cast("Jobs", running),
                **common,
                corpus=corpus,
                past_events=past.events if past else (),
                torn_bytes=torn_bytes,
                choose_lean=partial(lean_to_unreached, part=plan.part),
            )
        with EventLog(home.log(campaign), torn_bytes=torn_bytes) as log:
            all_handlers: tuple[Handler, ...] = (log, standing, *handlers)
            for event in engine.events():
                for handle in all_handlers:
                    handle(event)
    add_margins(home, standing, past.events if past else (), versions)
    return Ended(campaign, standing)


def _jobs(plan: Plan, ledger: Ledger) -> AbstractContextManager[Jobs]:
    setup = JobSetup(
        backends=plan.backends,
        contract=plan.contract,
        guard=plan.guard,
        alpha=plan.alpha_per_output,
        without=plan.without,
        ledger=ledger.entries,
        part=plan.part,
    )
    if plan.ray is None:
        return JobProcesses(plan.jobs, setup)
    on_gpu = any(resolve(name).capability.device is Device.CUDA for name in plan.backends)
    return RayJobs(plan.jobs, setup, address=plan.ray, on_gpu=on_gpu)
