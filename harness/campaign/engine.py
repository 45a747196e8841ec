"""The main process of a campaign: hands out slices, files what comes back, and tells it all as events."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

from msgspec.structs import replace

import attnfuzz
from attnfuzz.harness.campaign.events import (
    CampaignFinished,
    CampaignStarted,
    Event,
    FindingFiled,
    GapSeen,
    JobFailed,
    Progress,
    SliceFinished,
    SuspectSeen,
    UnconfirmedKept,
)
from attnfuzz.harness.campaign.jobs import JobEnded, Jobs
from attnfuzz.harness.campaign.messages import AnyMessage, Caught, Gap, Lost, Slice, SliceDone, Suspect, Tally
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.schedule import Schedule
from attnfuzz.harness.failures import Verdict
from attnfuzz.harness.findings import Finding, file_finding
from attnfuzz.harness.fingerprint import Fingerprint
from attnfuzz.reference.case import Case

SECONDS_PER_LOOK = 0.1
ATTEMPTS = 3

Render = Callable[[Case, Verdict], str]
Export = Callable[[Case], str | None]


class Campaign:
    """Runs `plan` on `jobs`. `stop` ends it early, `render` makes a verdict readable, `export` a script of a case.

    A fingerprint that is on file is passed over from then on, and so is one that failed to come back `ATTEMPTS`
    times. What was still a suspect when a campaign was stopped is kept as unconfirmed.
    """

    def __init__(self, plan: Plan, jobs: Jobs, *, stop: threading.Event, render: Render, export: Export) -> None:
        self._plan = plan
        self._jobs = jobs
        self._stop = stop
        self._render = render
        self._export = export
        self._schedule = Schedule(plan.backends, examples=plan.examples, seed=plan.seed)
        self._running: dict[int, Slice] = {}
        self._suspects: dict[tuple[int, Fingerprint], Suspect] = {}
        self._filed: set[Fingerprint] = set()
        self._names: set[str] = set()
        self._lost: Counter[Fingerprint] = Counter()
        self._gaps: set[Fingerprint] = set()
        self._started = time.monotonic()

    def events(self) -> Iterator[Event]:
        """Run the campaign. Raises OSError when a finding can't be written."""
        plan = self._plan
        yield CampaignStarted(
            at=0.0,
            attnfuzz=attnfuzz.__version__,
            backends=plan.backends,
            examples=plan.examples,
            seconds=plan.seconds,
            seed=plan.seed,
            jobs=self._jobs.count,
            contract=plan.contract,
            alpha=plan.alpha,
        )
        for job in range(self._jobs.count):
            self._start_slice(job)
        try:
            while self._running and not self._stop.is_set():
                received = self._jobs.next_message(SECONDS_PER_LOOK)
                if received is not None:
                    yield from self._take(*received)
        except JobEnded as ended:
            yield JobFailed(at=self._clock(), job=ended.number, text=ended.text)
        for suspect in self._suspects.values():
            yield self._keep(suspect, "the campaign ended before it was confirmed")
        yield CampaignFinished(at=self._clock(), interrupted=self._stop.is_set())

    def _clock(self) -> float:
        return time.monotonic() - self._started

    def _start_slice(self, job: int) -> None:
        """Hand `job` the next slice, if examples and time are left."""
        seconds = self._plan.seconds
        left = None if seconds is None else seconds - self._clock()
        if left is not None and left <= 0:
            return
        task = self._schedule.next_slice()
        if task is None:
            return
        given_up = (fingerprint for fingerprint, times in self._lost.items() if times >= ATTEMPTS)
        known = tuple(f for f in (*self._filed, *given_up) if f.backend == task.backend)
        self._running[job] = Slice(
            backend=task.backend,
            index=task.index,
            seed=task.seed,
            examples=task.examples,
            known=known,
            seconds=left,
        )
        self._jobs.start(job, self._running[job])

    def _take(self, job: int, message: AnyMessage) -> Iterator[Event]:
        match message:
            case Tally(cases=cases, deaths=deaths, shrinking=shrinking):
                backend = self._running[job].backend
                yield Progress(at=self._clock(), backend=backend, cases=cases, deaths=deaths, shrinking=shrinking)
            case Suspect(fingerprint=fingerprint, case=case, observation=observation):
                self._suspects[job, fingerprint] = message
                yield SuspectSeen(at=self._clock(), case=case, observation=observation)
            case Lost(fingerprint=fingerprint):
                suspect = self._suspects.pop((job, fingerprint))
                self._lost[fingerprint] += 1
                yield self._keep(suspect, "it did not come back in a fresh worker")
            case Caught(fingerprint=fingerprint):
                del self._suspects[job, fingerprint]
                yield from self._file(message)
            case Gap(fingerprint=fingerprint, case=case, observation=observation):
                if fingerprint not in self._gaps:
                    self._gaps.add(fingerprint)
                    yield GapSeen(at=self._clock(), case=case, observation=observation)
            case SliceDone():
                yield self._finish_slice(job, message)

    def _file(self, caught: Caught) -> Iterator[Event]:
        """File what a job caught, unless another job or another road led to the same bug before."""
        finding = Finding(case=caught.case, first=caught.first, observation=caught.observation, report="")
        if caught.fingerprint not in self._filed and finding.name not in self._names:
            report = self._render(caught.case, caught.verdict)
            finding = replace(finding, report=report, script=self._export(caught.case))
            path = file_finding(finding, self._plan.out / "findings")
            yield FindingFiled(
                at=self._clock(),
                case=finding.case,
                observation=finding.observation,
                path=str(path),
                report=finding.report,
            )
        self._filed.add(caught.fingerprint)
        self._names.add(finding.name)

    def _keep(self, suspect: Suspect, reason: str) -> UnconfirmedKept:
        case, observation = suspect.case, suspect.observation
        report = f"Unconfirmed: {reason}.\n\n{self._render(case, Verdict(observations=(observation,)))}"
        finding = Finding(case=case, first=case, observation=observation, report=report)
        path = file_finding(finding, self._plan.out / "unconfirmed")
        return UnconfirmedKept(at=self._clock(), case=case, observation=observation, path=str(path), reason=reason)

    def _finish_slice(self, job: int, done: SliceDone) -> Event:
        task = self._running.pop(job)
        if done.stopped_early:
            self._schedule.give_back(task.backend, task.examples - done.searched)
        self._start_slice(job)
        return SliceFinished(
            at=self._clock(),
            backend=task.backend,
            index=task.index,
            seed=task.seed,
            examples=done.searched,
            cases=done.cases,
            deaths=done.deaths,
            seconds=done.seconds,
            unsupported=done.unsupported,
        )
