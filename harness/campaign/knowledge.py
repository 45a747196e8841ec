"""The knowledge of a campaign's engine, folded from its events alone, so that folding a log resumes it."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from attnfuzz.harness.campaign.causes import causes_of, renamed, root_of
from attnfuzz.harness.campaign.events import (
    AlreadyFiled,
    AnyFinding,
    CausesMerged,
    Event,
    FindingChecked,
    FindingFiled,
    FindingMinimized,
    GapSeen,
    SliceFinished,
    SliceStarted,
    SuspectSeen,
    UnconfirmedKept,
)
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import FAILS_ALONE, SliceKind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase

ATTEMPTS = 3

JOB_KILLED = "the job that ran it was killed each time"
OUT_OF_TIME = "the campaign ended before it was confirmed"

MOST_CAUSES = 50
"""Maximum number of known causes in a slice, those in its backend first: a campaign may find hundreds."""

UNSETTLED = frozenset({JOB_KILLED, OUT_OF_TIME})
"""Reasons that say nothing about the failure, which may be real."""


class Knowledge:
    """A handler of events that tracks the work that the search must not repeat.

    `findings` are those that fail in this campaign, by name, `checked` past ones that were run again, `gaps` the
    reported gaps, and `replayed` the seeds of finished slices of kept cases. `drawing`: drawing has begun, after all
    kept cases were handed out. `pending` are suspects neither filed nor lost, including those kept only because the
    campaign ended. `times_seen` counts how often each was seen, including reruns. `compared` are the seeds of slices
    that compared causes, and `seconds_compared` their time.
    """

    def __init__(self) -> None:
        self.findings: dict[str, AnyFinding] = {}
        self.checked: set[str] = set()
        self.gaps: set[Fingerprint] = set()
        self.replayed: set[int] = set()
        self.compared: set[int] = set()
        self.seconds_compared = 0.0
        self.drawing = False
        self.pending: dict[tuple[Fingerprint, AnyCase], SuspectSeen] = {}
        self.times_seen: Counter[tuple[Fingerprint, AnyCase]] = Counter()
        self._filed: dict[Fingerprint, None] = {}
        self._also_seen_as: dict[str, list[Fingerprint]] = {}
        self._merged: dict[str, str] = {}
        self._lost: Counter[Fingerprint] = Counter()

    def __call__(self, event: Event) -> None:
        """Learn from `event`."""
        match event:
            case SuspectSeen(fingerprint=fingerprint, case=case):
                self.pending[fingerprint, case] = event
                self.times_seen[fingerprint, case] += 1
            case FindingFiled(fingerprint=fingerprint, name=name):
                self.findings[name] = event
                self._file(fingerprint)
            case AlreadyFiled(fingerprint=fingerprint, name=name):
                self._also_seen_as.setdefault(name, []).append(fingerprint)
                self._file(fingerprint)
            case FindingChecked(fingerprint=fingerprint, name=name, state=state):
                self.checked.add(name)
                if state is not State.FIXED:
                    self.findings[name] = event
                    self._file(fingerprint)
            case FindingMinimized(name=name, finding=finding):
                self._replace(name, finding)
            case CausesMerged(name=name, cause=cause):
                self._merged[name] = cause
            case UnconfirmedKept(fingerprint=fingerprint, case=case, reason=reason) if reason != OUT_OF_TIME:
                self._settle([(fingerprint, case)])
                self._lost[fingerprint] += reason != FAILS_ALONE
            case GapSeen(fingerprint=fingerprint):
                self.gaps.add(fingerprint)
            case SliceStarted(kind=SliceKind.DRAWN):
                self.drawing = True
            case SliceFinished():
                self._finish(event)

    def passed_over(self, backend: str) -> tuple[Fingerprint, ...]:
        """Return the failures that the search of `backend` skips: filed ones, and those lost `ATTEMPTS` times."""
        given_up = (fingerprint for fingerprint, times in self._lost.items() if times >= ATTEMPTS)
        return tuple(f for f in dict.fromkeys((*self._filed, *given_up)) if f.backend == backend)

    @property
    def causes(self) -> list[KnownCause]:
        """The causes of failures in this campaign."""
        return [self._known(findings, self._first(findings)) for findings in self._groups()]

    def causes_near(self, backend: str) -> tuple[KnownCause, ...]:
        """Return the causes that may be visible in `backend`, those seen in it first."""

        def elsewhere(cause: KnownCause) -> bool:
            return all(each.backend != backend for each in cause.symptoms)

        return tuple(sorted(self.causes, key=elsewhere)[:MOST_CAUSES])

    def _groups(self) -> Iterator[Sequence[AnyFinding]]:
        return (cause.findings for cause in causes_of(list(self.findings.values()), self._merged))

    def cause_of(self, name: str) -> str:
        """Return the finding that represents the cause of the finding `name`, or "" if that is not known to fail."""
        # A job may know it by the name that it had before it was minimized.
        name = name if name in self.findings else root_of(name, self._merged)
        group = next((each for each in self._groups() if any(name == finding.name for finding in each)), ())
        return self._first(group).name if group else ""

    def _known(self, findings: Sequence[AnyFinding], first: AnyFinding) -> KnownCause:
        shown_as = (
            fingerprint
            for finding in findings
            for fingerprint in (finding.fingerprint, *self._also_seen_as.get(finding.name, ()))
        )
        return KnownCause(
            name=first.name,
            case=first.case,
            fingerprint=first.fingerprint,
            needs=first.needs,
            ablated=first.ablated,
            shown_as=tuple(dict.fromkeys(shown_as)),
            shown_with=tuple(dict.fromkeys(finding.needs for finding in findings)),
            exceptions=frozenset(each.observation.exception for each in findings) - {""},
        )

    def _first(self, findings: Sequence[AnyFinding]) -> AnyFinding:
        """Return the finding that explains the others."""
        return next((each for each in findings if not each.cause and each.name not in self._merged), findings[0])

    def is_filed(self, fingerprint: Fingerprint) -> bool:
        """Return whether a failure with this fingerprint is on file, and fails now."""
        return fingerprint in self._filed

    def _finish(self, event: SliceFinished) -> None:
        match event.kind:
            case SliceKind.COMPARED:
                self.compared.add(event.seed)
                self.seconds_compared += event.seconds
            case SliceKind.KEPT | SliceKind.ONCE_MORE:
                self.replayed.add(event.seed)

    def _replace(self, name: str, finding: FindingFiled) -> None:
        """Replace the finding `name` by a minimized one."""
        ordered = (finding if each.name == name else each for each in self.findings.values())
        self.findings = {each.name: each for each in ordered}
        # It has the history of the other one, and needs no second run if this campaign is resumed.
        self.checked.add(finding.name)
        self._also_seen_as[finding.name] = self._also_seen_as.pop(name, [])
        self._merged = renamed(self._merged, name, finding.name)

    def _file(self, fingerprint: Fingerprint) -> None:
        self._filed[fingerprint] = None
        self._settle([key for key in self.pending if key[0] == fingerprint])

    def _settle(self, suspects: Iterable[tuple[Fingerprint, AnyCase]]) -> None:
        for suspect in suspects:
            self.pending.pop(suspect, None)
            self.times_seen.pop(suspect, None)
