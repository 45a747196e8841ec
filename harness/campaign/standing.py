"""The state of a campaign, folded from its events alone, from which terminal, summary and every report are drawn."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from attnfuzz.harness.campaign.causes import Cause, causes_of, renamed
from attnfuzz.harness.campaign.events import (
    AlreadyFiled,
    AnyFinding,
    CampaignFinished,
    CampaignResumed,
    CampaignStarted,
    CaseAwaited,
    CaseKept,
    CausesMerged,
    CoverageGrew,
    Event,
    FindingChecked,
    FindingFiled,
    FindingMinimized,
    FindingTriaged,
    GapSeen,
    JobFailed,
    JobReady,
    JobRestarted,
    LedgerRemark,
    Progress,
    ScriptMade,
    SliceFinished,
    SliceStarted,
    Trouble,
    UnconfirmedKept,
)
from attnfuzz.harness.campaign.knowledge import UNSETTLED
from attnfuzz.harness.findings.finding import script_words
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.search.messages import Recognized, Tally
from attnfuzz.harness.verdict.blame import Blamed
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.strategies.coverage import Pair

SECONDS_PER_SAMPLE = 10.0
"""Minimum distance of a timeline's points."""


@dataclass
class Score:
    """One backend's totals in the whole campaign."""

    tally: Tally = field(default_factory=Tally)
    kept: int = 0
    slices: int = 0
    seconds: float = 0.0
    unsupported: Counter[str] = field(default_factory=Counter)
    pairs: set[Pair] = field(default_factory=set)
    growth: list[tuple[int, int]] = field(default_factory=list)
    """(cases searched, pairs reached), each time it grew."""

    @property
    def usual_refusal(self) -> str:
        """The most frequent reason why a case is not supported, "" if all are."""
        return next((reason for reason, _ in self.unsupported.most_common(1)), "")


@dataclass(frozen=True)
class TimelinePoint:
    """A point of the timeline: totals over all backends, `at` seconds into the campaign."""

    at: float
    runs: int
    deaths: int
    pairs: int
    findings: int


class Standing:
    """A handler of events that keeps the score of each backend, and all findings.

    `obstacles` has, by finding, a sentence about each script that has not shown its failure. `running` has the slice of
    each job that has one, `awaited` the time since which each job that waits for a case does so, and `ready` the jobs
    that have had a worker. `at` is the time of the last event, `coverage_at` and `finding_at` of the last new coverage
    and finding, if any.
    """

    def __init__(self) -> None:
        self.started: CampaignStarted | None = None
        self.finished: CampaignFinished | None = None
        self.resumed: list[CampaignResumed] = []
        self.scores: dict[str, Score] = {}
        self.filed: list[FindingFiled] = []
        self.checked: list[FindingChecked] = []
        self.obstacles: dict[str, str] = {}
        self.merged: dict[str, str] = {}
        self.blamed: dict[str, Blamed] = {}
        self.unconfirmed: list[UnconfirmedKept] = []
        self.gaps: list[GapSeen] = []
        self.remarks: list[LedgerRemark] = []
        self.troubles: list[Trouble] = []
        self.restarted_jobs: list[JobRestarted] = []
        self.running: dict[int, SliceStarted] = {}
        self.ready: set[int] = set()
        self.awaited: dict[int, float] = {}
        self.failure: JobFailed | None = None
        self.at = 0.0
        self.coverage_at: float | None = None
        self.finding_at: float | None = None
        self.timeline: list[TimelinePoint] = []

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Standing":
        """Return the standing after these events."""
        standing = cls()
        for event in events:
            standing(event)
        return standing

    def __call__(self, event: Event) -> None:
        """Count `event`."""
        self.at = event.at
        match event:
            case CampaignStarted():
                self.started = event
                self.scores = {backend: Score() for backend in event.backends}
            case CampaignResumed():
                self.resumed.append(event)
                self.running.clear()
                self.awaited.clear()
                self.finished = self.failure = None
                # They are generated again at the end.
                self.remarks.clear()
            case CampaignFinished():
                self.finished = event
            case Progress():
                self.score(event.backend).tally += event.tally
            case CoverageGrew():
                score = self.score(event.backend)
                score.pairs.update(event.pairs)
                score.growth.append((event.searched, len(score.pairs)))
                self.coverage_at = event.at
            case CaseKept():
                self.score(event.backend).kept += 1
            case SliceStarted():
                self.running[event.job] = event
            case SliceFinished():
                self.running = {j: task for j, task in self.running.items() if not _ends(event, task)}
                score = self.score(event.backend)
                score.slices += 1
                score.seconds += event.seconds
                score.unsupported.update(event.unsupported)
            case JobFailed():
                self.failure = event
            case Trouble():
                self.troubles.append(event)
            case _:
                self._remember(event)
        last = self.timeline[-1].at if self.timeline else 0.0
        if isinstance(event, CampaignFinished) or event.at >= last + SECONDS_PER_SAMPLE:
            self.timeline.append(TimelinePoint(self.at, self.runs, self.deaths, self.pairs, len(self.filed)))

    def score(self, backend: str) -> Score:
        """Return the score of a backend, a new one for a backend that is no longer searched."""
        return self.scores.setdefault(backend, Score())

    @property
    def environment(self) -> dict[str, str]:
        """The relevant versions since the campaign was last resumed."""
        if self.resumed:
            return self.resumed[-1].environment
        return {} if self.started is None else self.started.environment

    @property
    def findings(self) -> list[AnyFinding]:
        """The current failures, new and returned ones before open ones, known ones last."""
        failing: list[AnyFinding] = [
            *self.filed,
            *(each for each in self.checked if each.state is not State.FIXED),
        ]
        order = {State.NEW: 0, State.RETURNED: 1, State.OPEN: 2, State.FIXED: 3}
        return sorted(failing, key=lambda each: (each.known is not None, order[each.state]))

    @property
    def causes(self) -> list[Cause]:
        """The causes of current failures, in the order of `findings`."""
        return causes_of(self.findings, self.merged)

    @property
    def unexpected(self) -> list[AnyFinding]:
        """The current failures that are not in the ledger."""
        return [each for each in self.findings if each.known is None]

    @property
    def unsettled(self) -> list[UnconfirmedKept]:
        """Suspects that were neither confirmed nor refuted, and that are not in the ledger."""
        return [each for each in self.unconfirmed if each.reason in UNSETTLED and each.known is None]

    @property
    def clean(self) -> bool:
        """Whether there is nothing to do: cases were judged, without failures outside of the ledger or suspects."""
        return not (self.idle or self.unexpected or self.unsettled)

    @property
    def idle(self) -> bool:
        """Whether it ended normally without judging or finding anything: it tells nothing about the backends."""
        ended = self.finished is not None and not self.finished.interrupted
        return ended and not (self.runs or self.findings or self.unsettled or self.checked)

    @property
    def fixed(self) -> list[FindingChecked]:
        """Findings of earlier campaigns that pass now, and were not found again since."""
        found = {each.name for each in self.filed}
        return [each for each in self.checked if each.state is State.FIXED and each.name not in found]

    @property
    def cases(self) -> int:
        """The number of drawn cases judged on all backends."""
        return sum(score.tally.searched for score in self.scores.values())

    @property
    def runs(self) -> int:
        """The number of runs judged on all backends: of drawn and earlier cases, and to minimize and confirm."""
        return sum(score.tally.cases for score in self.scores.values())

    @property
    def deaths(self) -> int:
        """The number of workers that died, on all backends."""
        return sum(score.tally.deaths for score in self.scores.values())

    @property
    def recognized(self) -> dict[int, Recognized]:
        """The failures that the ledger's entry of each number may account for, and known causes alone under 0."""
        return sum((score.tally for score in self.scores.values()), Tally()).recognized

    @property
    def known_without_finding(self) -> int:
        """The number of failures that counted as known after one run, and that are no findings."""
        return sum(each.passed for each in self.recognized.values())

    @property
    def pairs(self) -> int:
        """The number of pairs of features reached, summed over all backends."""
        return sum(len(score.pairs) for score in self.scores.values())

    def rate(self, cases: int) -> float:
        """Return cases per second of the campaign, up to its last event."""
        return cases / max(self.at, 1e-3)

    @property
    def waiting(self) -> float:
        """The seconds up to the last event that a job has waited for a case; 0 if none waits for long."""
        return self.at - min(self.awaited.values(), default=self.at)

    def _remember(self, event: Event) -> None:
        match event:
            case JobReady(job=job):
                self.ready.add(job)
            case CaseAwaited(job=job, seconds=seconds, over=over):
                self.awaited[job] = event.at - seconds
                if over:
                    del self.awaited[job]
            case UnconfirmedKept(fingerprint=fingerprint, case=case):
                self.unconfirmed = [
                    each for each in self.unconfirmed if (each.fingerprint, each.case) != (fingerprint, case)
                ]
                self.unconfirmed.append(event)
            case _:
                self._note(event)

    def _note(self, event: Event) -> None:
        match event:
            case GapSeen():
                self.gaps.append(event)
            case LedgerRemark():
                self.remarks.append(event)
            case JobRestarted():
                self.restarted_jobs.append(event)
                self.running.pop(event.job, None)
                self.awaited.pop(event.job, None)
            case ScriptMade(name=name, kept=kept, obstacle=obstacle):
                self.obstacles.pop(name, None)
                if obstacle:
                    self.obstacles[name] = script_words(obstacle, kept=kept)
            case _:
                self._remember_finding(event)

    def _remember_finding(self, event: Event) -> None:
        match event:
            case FindingFiled(fingerprint=fingerprint):
                self.filed.append(event)
                self.finding_at = event.at
                self._confirmed(fingerprint)
            case AlreadyFiled(fingerprint=fingerprint):
                self._confirmed(fingerprint)
            case FindingChecked(fingerprint=fingerprint, state=state):
                self.checked.append(event)
                if state is not State.FIXED:
                    self._confirmed(fingerprint)
            case FindingMinimized(name=name, finding=finding):
                self._replace(name, finding)
            case FindingTriaged(name=name, blame=blame):
                self.blamed[name] = blame
            case CausesMerged(name=name, cause=cause, known=known):
                self.merged[name] = cause
                if known is not None:
                    self._know(cause, known)

    def _replace(self, name: str, finding: FindingFiled) -> None:
        """Replace the finding `name`, which an earlier campaign may have filed, by a minimized one."""
        if any(each.name == name for each in self.filed):
            self.filed = [finding if each.name == name else each for each in self.filed]
        else:
            self.checked = [each for each in self.checked if each.name != name]
            self.filed.append(finding)
        self.merged = renamed(self.merged, name, finding.name)

    def _confirmed(self, fingerprint: Fingerprint) -> None:
        """Drop leftover suspects with this fingerprint, which are a finding now."""
        self.unconfirmed = [
            each for each in self.unconfirmed if each.fingerprint != fingerprint or each.reason not in UNSETTLED
        ]

    def _know(self, name: str, known: str) -> None:
        """Give all findings with the cause of this one the ledger's reason for it."""
        group = next((each.findings for each in self.causes if name in {one.name for one in each.findings}), ())
        names = {finding.name for finding in group if finding.known is None}
        self.filed = [replace(each, known=known) if each.name in names else each for each in self.filed]
        self.checked = [replace(each, known=known) if each.name in names else each for each in self.checked]


def _ends(finished: SliceFinished, started: SliceStarted) -> bool:
    return all(getattr(finished, name) == getattr(started, name) for name in ("backend", "kind", "index", "seed"))
