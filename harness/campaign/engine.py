"""The main process of a campaign: it hands out slices, files results, and emits everything as events."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from attnfuzz.harness.campaign.closing import Undone, remarks_on, unjudged
from attnfuzz.harness.campaign.comparisons import Comparisons
from attnfuzz.harness.campaign.events import (
    AnyEvent,
    CampaignFinished,
    CampaignResumed,
    CaseAwaited,
    Event,
    FindingFiled,
    FindingMinimized,
    GapSeen,
    JobFailed,
    JobReady,
    JobRestarted,
    SuspectSeen,
    Trouble,
)
from attnfuzz.harness.campaign.filing import Filing, Render
from attnfuzz.harness.campaign.growth import Growth
from attnfuzz.harness.campaign.jobs import JobEnded, Jobs
from attnfuzz.harness.campaign.knowledge import JOB_KILLED, OUT_OF_TIME, Knowledge
from attnfuzz.harness.campaign.minimizing import Minimizing
from attnfuzz.harness.campaign.plan import Limits, Plan
from attnfuzz.harness.campaign.replays import Replays, kept_cases, may_run
from attnfuzz.harness.campaign.resume import opening
from attnfuzz.harness.campaign.schedule import Schedule
from attnfuzz.harness.campaign.scripting import JOB_KILLED as KILLED_BY_SCRIPT
from attnfuzz.harness.campaign.scripting import NOT_MADE, Scripting
from attnfuzz.harness.campaign.shrinking import ShrinkingTime
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.campaign.tasks import REPLAYS_SHARE, ChooseLean, Tasks, lean_to_unreached
from attnfuzz.harness.campaign.under_way import Tallies, UnderWay
from attnfuzz.harness.corpus import Corpus
from attnfuzz.harness.findings.archive import Archive
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.search.messages import (
    NOT_COME_BACK,
    AnyMessage,
    Caught,
    DriverAwaited,
    Gap,
    HandedOver,
    Interesting,
    Lost,
    MaySettle,
    Ready,
    Rechecked,
    SameCauses,
    Slice,
    SliceDone,
    Suspect,
    Tally,
    Unable,
)
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.harness.verdict.wording import clock, replay_line

SECONDS_PER_LOOK = 0.1
SECONDS_PER_LOOK_AT_ALL = 1.0
"""Time between two checks for silent jobs. With a thousand jobs, a check after each message would take most of the
time.
"""

SECONDS_OF_SILENCE = 600.0
"""Time that a job with a slice may be silent before it is killed. A hanging case is ended after half a minute, but
waiting for a process that the system can't end takes forever.
"""

SECONDS_TO_REPORT = 3.0
SECONDS_PER_REPORT = 5.0
"""Silence of a job after which it is reported to wait for a case, and then time between two reports."""

SECONDS_TO_DOUBT = 10.0
"""Time for which all jobs must have waited for the GPU's driver when the campaign ends, for it to count as gone."""

LAST_CASE = "the GPU did not answer any more after it"

DEATHS_IN_A_ROW = 3
"""Number of times that a job may be killed before it has judged anything. More is no coincidence."""


class Campaign:
    """Runs `plan` on `jobs`, as the campaign of that name. `stop` ends it early.

    Its decisions follow from its own events: with those of a log as `past_events`, it resumes that campaign, and runs
    leftover suspects first. `torn_bytes` were cut off that log. `render` makes a verdict readable. Raises OSError if
    the findings can't be read.

    Fingerprints on file are skipped, and so are those that failed to come back several times. Remaining suspects are
    kept as unconfirmed at the end.
    """

    def __init__(
        self,
        plan: Plan,
        jobs: Jobs,
        *,
        campaign: str,
        archive: Archive,
        corpus: Corpus,
        ledger: Ledger | None,
        environment: Mapping[str, str],
        past_events: Sequence[AnyEvent] = (),
        torn_bytes: int = 0,
        stop: threading.Event,
        render: Render,
        choose_lean: ChooseLean = lean_to_unreached,
    ) -> None:
        self._plan = plan
        self._jobs = jobs
        self._name = campaign
        self._archive = archive
        self._corpus = corpus
        self._ledger = ledger or Ledger()
        self._environment = dict(environment)
        self._resumes = bool(past_events)
        self._torn_bytes = torn_bytes
        self._stop = stop
        self._standing = Standing()
        self._knowledge = Knowledge()
        self._schedule = Schedule(plan.backends, examples=plan.examples, seed=plan.seed)
        self._shrinking = ShrinkingTime(jobs.count, most=plan.seconds_per_slice)
        self._minimizing = Minimizing(self._knowledge, seed=plan.seed, jobs=jobs.count)
        self._scripting = Scripting(seed=plan.seed, jobs=jobs.count)
        for event in past_events:
            self._learn(event)
        self._before = self._standing.at
        self._started = time.monotonic()
        self._limits = Limits.of(plan.seconds, spent=self._before, late=self._started - plan.begun)
        self._past = [each for each in archive.past(plan.backends) if may_run(each.case, plan.part)]
        self._tallies = Tallies(self._clock)
        self._growth = Growth(corpus, self._standing, self._clock)
        self._filing = Filing(
            archive=archive,
            ledger=self._ledger,
            knowledge=self._knowledge,
            past={record.name: record for record in self._past},
            clock=self._clock,
            render=render,
        )
        replays = self._replays()
        self._undone = Undone(replays)
        self._tasks = Tasks(
            plan=plan,
            knowledge=self._knowledge,
            standing=self._standing,
            schedule=self._schedule,
            shrinking=self._shrinking,
            replays=replays,
            comparisons=Comparisons(self._knowledge, seed=plan.seed, jobs=jobs.count),
            minimizing=self._minimizing,
            scripting=self._scripting,
            passed_over=self._filing.passed_over,
            choose_lean=choose_lean,
            limits=self._limits,
        )
        self._running: dict[int, UnderWay] = {}
        self._last_message_at: dict[int, float] = {}
        self._report_at: dict[int, float] = {}
        self._driver_awaited: dict[int, DriverAwaited] = {}
        self._next_look = 0.0
        self._deaths: Counter[int] = Counter()

    def events(self) -> Iterator[Event]:
        """Run the campaign. Raises OSError if a file can't be written."""
        for event in self._happenings():
            self._learn(event)
            yield event

    def _learn(self, event: Event) -> None:
        for handler in (self._standing, self._knowledge, self._schedule, self._shrinking, self._minimizing):
            handler(event)
        if self._plan.trial is None:
            self._scripting(event)

    def _clock(self) -> float:
        return self._before + time.monotonic() - self._started

    def _replays(self) -> Replays:
        examples = self._plan.examples
        return Replays(
            self._plan.backends,
            past=self._past,
            # Drawing begins when all kept cases are handed out.
            kept=(lambda _: ()) if self._knowledge.drawing else kept_cases(self._corpus, self._plan.part),
            seed=self._plan.seed,
            most=None if examples is None else int(examples * REPLAYS_SHARE),
            done=self._knowledge.replayed,
            checked=self._knowledge.checked,
        )

    def _happenings(self) -> Iterator[Event]:
        """Yield events. Each is learned before the next is produced."""
        yield self._opening()
        for text in (*self._archive.troubles, *self._corpus.troubles):
            yield from self._trouble(text)
        failure: JobEnded | None = None
        try:
            yield from self._search()
        except JobEnded as ended:
            failure = ended
        for backend in self._plan.backends:
            yield from self._tallies.flush(backend)
        if failure is not None:
            yield JobFailed(at=self._clock(), job=failure.number, text=failure.text, fixable=failure.fixable)
        yield from self._keep_pending()
        for name in self._scripting.waiting:
            yield from self._filing.without_script(name, NOT_MADE)
        if failure is None and not self._cut_short:
            yield from self._tell_undone()
            yield from remarks_on(self._ledger, self._standing, self._past)
        yield CampaignFinished(at=self._clock(), time=time.time(), interrupted=self._stop.is_set())

    def _opening(self) -> Event:
        if not self._resumes:
            return opening(self._plan, campaign=self._name, jobs=self._jobs.count, environment=self._environment)
        return CampaignResumed(
            at=self._clock(),
            time=time.time(),
            environment=self._environment,
            jobs=self._jobs.count,
            torn_bytes=self._torn_bytes,
        )

    def _search(self) -> Iterator[Event]:
        """Keep all jobs busy until nothing is left to do. Raises JobEnded if the harness is broken."""
        yield from self._start_slices()
        while self._running and not self._over():
            try:
                received = self._jobs.next_message(0.0 if self._growth.chosen else SECONDS_PER_LOOK)
            except JobEnded as ended:
                yield from self._revive(ended)
            else:
                if received is not None:
                    yield from self._hear(*received)
                elif self._growth.chosen:
                    yield from self._growth.keep()
            self._growth.choose_if_due()
            yield from self._look_at_the_silent()
            yield from self._tallies.due()
            yield from self._start_slices()
        if not self._over():
            self._growth.choose()
        while self._growth.chosen and not self._over():
            yield from self._growth.keep()
        if not self._cut_short:
            yield from self._check_driver()
        if not self._stop.is_set():
            yield from self._cut_off()

    def _over(self) -> bool:
        """Return whether to stop waiting."""
        return self._cut_short or self._clock() >= self._limits.ended

    @property
    def _cut_short(self) -> bool:
        """Whether the campaign ends before its budget, because it was stopped or has its finding with the script."""
        return self._stop.is_set() or self._tasks.complete

    def _check_driver(self) -> Iterator[Event]:
        """End as after a GPU that is gone, if the driver keeps all jobs waiting at the end of the time."""
        waits = [self._driver_awaited.get(job) for job in self._running]
        if waits and all(wait is not None and wait.seconds >= SECONDS_TO_DOUBT for wait in waits):
            seconds, job = max((wait.seconds, job) for job, wait in self._driver_awaited.items())
            text = f"the GPU does not answer any more: its driver has created no CUDA context for {clock(seconds)}"
            yield from self._give_up_with(job, Unable(text=text, last=self._driver_awaited[job].last))

    def _cut_off(self) -> Iterator[Event]:
        """Count the results so far of running slices, whose jobs are about to be stopped."""
        for run in self._running.values():
            yield from self._end_slice(run, run.so_far(self._clock()))
        self._running.clear()

    def _tell_undone(self) -> Iterator[Event]:
        """Report backends that judged nothing, and undone tasks, except suspects, which are reported one by one."""
        for text in unjudged(self._standing):
            yield from self._trouble(text)
        if self._plan.seconds is not None:
            for text in self._undone.lines(self._schedule):
                yield from self._trouble(text)

    def _start_slices(self) -> Iterator[Event]:
        """Hand a slice to each job that has none, as long as there are any."""
        if len(self._running) == self._jobs.count or self._cut_short:
            return
        for job in sorted({*range(self._jobs.count)} - self._running.keys()):
            at = self._clock()
            run = self._tasks.next(at, self._running.values(), self._tallies.unsent) or self._scripting.awaited(job, at)
            if run is None:
                continue
            self._scripting.begin(job, run)
            self._running[job] = run
            self._last_message_at[job] = self._clock()
            yield run.started(job)
            self._jobs.start(job, run.task)

    def _look_at_the_silent(self) -> Iterator[Event]:
        """Kill jobs that are stuck, and report those that wait for a case."""
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + SECONDS_PER_LOOK_AT_ALL
        for job in self._running:
            silent = now - self._last_message_at[job]
            if silent > SECONDS_OF_SILENCE:
                self._last_message_at[job] = now
                self._jobs.kill(job)
            elif job in self._standing.ready and silent >= self._report_at.get(job, SECONDS_TO_REPORT):
                self._report_at[job] = silent + SECONDS_PER_REPORT
                yield CaseAwaited(at=now, job=job, seconds=silent)

    def _hear(self, job: int, message: AnyMessage) -> Iterator[Event]:
        """Take a message of a job, which ends its silence."""
        now = self._clock()
        if self._report_at.pop(job, None) is not None:
            yield CaseAwaited(at=now, job=job, seconds=now - self._last_message_at[job], over=True)
        self._last_message_at[job] = now
        self._driver_awaited.pop(job, None)
        if isinstance(message, Ready):
            yield JobReady(at=now, job=job)
        elif isinstance(message, DriverAwaited):
            self._driver_awaited[job] = message
        else:
            yield from self._take(job, message)

    def _take(self, job: int, message: AnyMessage) -> Iterator[Event]:
        run = self._running[job]
        match message:
            case Tally():
                self._deaths[job] = 0
                run.tally += message
                self._tallies.add(run.task.backend, message)
            case MaySettle(fingerprint=fingerprint):
                self._jobs.answer(job, granted=self._tasks.grants(run, fingerprint, self._running.values()))
            case SliceDone():
                yield from self._finish_slice(job, message)
            case Unable():
                yield from self._give_up_with(job, message)
            case _:
                yield from self._take_result(run, message)

    def _take_result(self, run: UnderWay, message: AnyMessage) -> Iterator[Event]:
        """Take a message about a case or a failure."""
        match message:
            case Interesting() if self._plan.trial is None:
                yield from self._growth.take(message, searched=self._searched(run.task.backend))
            case Rechecked(finding=finding):
                self._undone.checked(finding)
                yield from self._filing.check(message)
            case HandedOver():
                if name := run.unscripted.pop((message.fingerprint, message.case), ""):
                    yield from self._filing.hand_over(name, message)
            case Suspect() | Lost() | Caught():
                yield from self._take_suspect(run, message)
            case SameCauses():
                yield from self._filing.merge(message)
            case Gap(fingerprint=fingerprint, case=case, observation=observation):
                if fingerprint not in self._knowledge.gaps:
                    yield GapSeen(at=self._clock(), fingerprint=fingerprint, case=case, observation=observation)

    def _give_up_with(self, job: int, unable: Unable) -> Iterator[Event]:
        """End the campaign, after the findings of other jobs. Raises JobEnded. A case that ran last is kept."""
        yield from self._take_rest()
        text = unable.text
        if unable.last is not None:
            observation = Observation(kind=Kind.WORKER_DIED, place=LAST_CASE, message=text)
            fingerprint = Fingerprint.of(unable.last.backend, observation)
            suspect = Suspect(fingerprint=fingerprint, case=unable.last, observation=observation)
            kept = self._filing.keep(suspect, LAST_CASE)
            yield kept
            text += f"; the case that ran last: {replay_line(kept.path)}"
        raise JobEnded(job, text, fixable=True)

    def _take_rest(self) -> Iterator[Event]:
        """Take the messages that have already arrived."""
        while True:
            try:
                received = self._jobs.next_message(0.0)
            except JobEnded:
                continue
            if received is None:
                return
            if not isinstance(received[1], Unable):
                yield from self._hear(*received)

    def _searched(self, backend: str) -> int:
        return self._standing.score(backend).tally.searched + self._tallies.unsent.get(backend, 0)

    def _trouble(self, text: str) -> Iterator[Event]:
        """Report a trouble once, even if every job has it."""
        if text not in {trouble.text for trouble in self._standing.troubles}:
            yield Trouble(at=self._clock(), text=text)

    def _take_suspect(self, run: UnderWay, message: Suspect | Lost | Caught) -> Iterator[Event]:
        """Report a suspect, or settle it, unless another job's finding of the same bug was filed meanwhile."""
        if run.minimizes(message):
            if isinstance(message, Caught):
                yield from self._minimize(run, message)
            return
        fingerprint = message.fingerprint
        suspect = message if isinstance(message, Suspect) else run.settled(fingerprint)
        filed = self._knowledge.is_filed(fingerprint) and not suspect.beside
        match message:
            case Caught(recurrence=Recurrence(seen_once=True) as tried) if self._plan.trial is not None:
                # A death that did not come back ends no trial.
                yield self._filing.keep(suspect, NOT_COME_BACK, tried)
            case Suspect(case=case, observation=observation, left_over=left_over):
                run.suspects[fingerprint] = message
                if not filed:
                    yield SuspectSeen(
                        at=self._clock(),
                        fingerprint=fingerprint,
                        case=case,
                        observation=observation,
                        left_over=left_over,
                    )
            case Lost(tried=tried, reason=reason):
                if not filed:
                    yield self._filing.keep(suspect, reason, tried)
            case Caught():
                if not filed:
                    yield from self._file(run, message)

    def _file(self, run: UnderWay, caught: Caught) -> Iterator[Event]:
        event = self._filing.file(caught)
        if isinstance(event, FindingFiled) and caught.script_follows:
            run.unscripted[caught.fingerprint, caught.case] = event.name
        yield event
        if isinstance(event, FindingFiled) and self._plan.trial is None:
            yield from self._growth.keep_failure(event.case)

    def _minimize(self, run: UnderWay, caught: Caught) -> Iterator[Event]:
        """Replace a cause's finding by its smaller case."""
        assert run.task.minimized is not None
        for event in self._filing.minimize(run.task.minimized.name, caught):
            if isinstance(event, FindingMinimized) and caught.script_follows:
                run.unscripted[caught.fingerprint, caught.case] = event.finding.name
            yield event
            if isinstance(event, FindingMinimized):
                yield from self._growth.keep_failure(event.finding.case)

    def _finish_slice(self, job: int, done: SliceDone) -> Iterator[Event]:
        run = self._running.pop(job)
        replayed = {replay.case for replay in run.task.replays[: done.replayed]}
        for key in run.again:
            suspect = self._knowledge.pending.get(key)
            if suspect is not None and suspect.case in replayed:
                yield self._filing.keep(suspect, NOT_COME_BACK)
        self._give_up(run.task)
        yield from self._end_slice(run, done)

    def _give_up(self, task: Slice) -> None:
        """Allow past findings that a slice did not run to be found again, like any failure."""
        for replay in task.replays:
            if replay.finding is not None:
                self._filing.give_up(replay.finding)

    def _end_slice(self, run: UnderWay, done: SliceDone) -> Iterator[Event]:
        yield from self._tallies.flush(run.task.backend)
        self._undone.ended(run, done)
        yield run.finished(self._clock(), done)

    def _revive(self, ended: JobEnded) -> Iterator[Event]:
        """Restart a killed job. Its results so far count, and the rest of its slice is handed out again."""
        job = ended.number
        self._deaths[job] += 1
        if not ended.killed or self._deaths[job] >= DEATHS_IN_A_ROW:
            raise ended
        run = self._running.pop(job, None)
        self._report_at.pop(job, None)
        if run is not None:
            for key in self._tasks.cut_off(run):
                yield self._filing.keep(self._knowledge.pending[key], JOB_KILLED)
            making, scripted = self._scripting.making.pop(job, {}), run.task.scripted
            if scripted is not None and (name := making.get((scripted.fingerprint, scripted.case))):
                yield from self._filing.without_script(name, KILLED_BY_SCRIPT)
            if not run.task.replays:
                yield from self._end_slice(run, run.so_far(self._clock()))
            elif not self._tasks.put_back(run):
                self._give_up(run.task)
        yield JobRestarted(at=self._clock(), job=job, text=ended.text)
        self._jobs.restart(job)

    def _keep_pending(self) -> Iterator[Event]:
        kept = {(event.fingerprint, event.case) for event in self._standing.unconfirmed}
        for key, suspect in list(self._knowledge.pending.items()):
            if key not in kept:
                yield self._filing.keep(suspect, OUT_OF_TIME)
