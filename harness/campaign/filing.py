"""Filing: turning jobs' caught, lost and checked failures into files and events."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from attnfuzz.harness.campaign.events import (
    AlreadyFiled,
    CausesMerged,
    Event,
    FindingChecked,
    FindingFiled,
    FindingMinimized,
    FindingTriaged,
    ScriptMade,
    SuspectSeen,
    Trouble,
    UnconfirmedKept,
)
from attnfuzz.harness.campaign.knowledge import Knowledge
from attnfuzz.harness.findings.archive import Archive
from attnfuzz.harness.findings.finding import Finding
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.ledger.file import Ledger
from attnfuzz.harness.search.known import clues_among
from attnfuzz.harness.search.messages import Caught, HandedOver, Rechecked, SameCauses, Suspect
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.verdict.fingerprint import Fingerprint, fine
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.reference.any_case import AnyCase

Render = Callable[[AnyCase, Verdict], str]


@dataclass(kw_only=True)
class Filing:
    """Files failures that a campaign's `knowledge` does not have yet.

    `render` makes a verdict readable. `past` are the findings waiting to be run again, by name: they count as failing
    until they pass. All methods raise OSError if a file can't be written.
    """

    archive: Archive
    ledger: Ledger
    knowledge: Knowledge
    past: Mapping[str, Record]
    clock: Callable[[], float]
    render: Render

    def __post_init__(self) -> None:
        """Wait for all past findings not run again yet."""
        self._waiting = self.past.keys() - self.knowledge.checked

    def passed_over(self, backend: str) -> tuple[Fingerprint, ...]:
        """Return the known failures of `backend`, which the search skips."""
        waiting = (self.past[name] for name in sorted(self._waiting))
        failing = (each.fingerprint for each in waiting if each.state is not State.FIXED)
        own = (fingerprint for fingerprint in failing if fingerprint.backend == backend)
        return tuple(dict.fromkeys((*self.knowledge.passed_over(backend), *own)))

    def file(self, caught: Caught) -> FindingFiled | AlreadyFiled:
        """File a caught failure, unless the same bug was filed before."""
        # A cause that another job filed earlier under its own finding is not on file. A finding beside others gets the
        # name under which its job knows it, as the cause of later symptoms.
        finding = replace(_finding(caught, self.knowledge.cause_of(caught.cause)), apart=caught.beside)
        name = self._on_file(finding, caught)
        if name is not None:
            return AlreadyFiled(at=self.clock(), fingerprint=caught.fingerprint, name=name)
        return self._write(finding, caught)

    def hand_over(self, name: str, handed: HandedOver) -> Iterator[ScriptMade | FindingTriaged]:
        """Add a script, or the reason why there is none, to the finding `name`, and whose fault it is."""
        yield self._add_script(name, handed.script, handed.obstacle)
        if handed.blame is not None:
            yield FindingTriaged(at=self.clock(), name=name, blame=handed.blame)

    def without_script(self, name: str, obstacle: str) -> Iterator[ScriptMade]:
        """Add the reason why there is no script to the finding `name`."""
        yield self._add_script(name, None, obstacle)

    def _add_script(self, name: str, script: str | None, obstacle: str) -> ScriptMade:
        self.archive.add_script(name, script, obstacle)
        return ScriptMade(at=self.clock(), name=name, kept=script is not None, obstacle=obstacle)

    def minimize(self, name: str, caught: Caught) -> Iterator[FindingMinimized | CausesMerged]:
        """File a caught failure in place of the finding `name`, which was not minimized before.

        Its cause is merged with the one that explains it, if any. Nothing happens if no needs were found.
        """
        before = self.knowledge.findings.get(name)
        if before is None or not (caught.ablated or caught.case != before.case):
            return
        others = self.knowledge.findings.keys() - {name}
        finding = _finding(caught, before.cause)
        finding = replace(finding, apart=finding.name in others)
        if finding.name in others:
            return
        # It was found when the other one was.
        filed = replace(self._write(finding, caught, replaces=name), at=before.at)
        for each in self.knowledge.findings.values():
            if each.cause == name:
                self.archive.explained(each.name, filed.name)
        yield FindingMinimized(at=self.clock(), name=name, finding=filed)
        yield from self.merge(SameCauses(name=filed.name, cause=caught.cause))

    def _write(self, finding: Finding, caught: Caught, *, replaces: str = "") -> FindingFiled:
        """Write a finding's files and remove the files of the finding that it replaces."""
        case, observation = caught.case, caught.observation
        finding = replace(finding, report=self._report(caught))
        path, state = self.archive.file(finding, caught.fingerprint, replaces=replaces)
        return FindingFiled(
            at=self.clock(),
            name=finding.name,
            fingerprint=caught.fingerprint,
            case=case,
            observation=observation,
            path=str(path),
            report=finding.report,
            needs=finding.needs,
            ablated=finding.ablated,
            cause=finding.cause,
            state=state,
            known=self._known(caught.fingerprint, case, finding.name, finding.cause),
            recurrence=caught.recurrence,
            others=tuple(each for each in caught.verdict.failures if each != observation),
        )

    def _on_file(self, finding: Finding, caught: Caught) -> str | None:
        """Return the name of the existing finding that a failure equals, or None.

        A failure beside others equals none of these, unless another job found it at the same time.
        """
        if not caught.beside:
            return finding.name if finding.name in self.knowledge.findings else None
        alike = (each for each in self.knowledge.findings.values() if each.fingerprint == caught.fingerprint)
        return next((each.name for each in alike if clues_among(each.needs) == clues_among(caught.needs)), None)

    def _known(self, fingerprint: Fingerprint, case: AnyCase, name: str, cause: str) -> str | None:
        """Return the ledger's reason for a failure, or for the finding that represents its cause."""
        own = self.ledger.reason(fingerprint, case, name)
        above = self.knowledge.findings.get(cause) or self.past.get(cause)
        if own is not None or above is None:
            return own
        return self.ledger.reason(above.fingerprint, above.case, above.name)

    def _report(self, caught: Caught) -> str:
        text = self.render(caught.case, caught.verdict)
        return text if caught.recurrence is None else f"{caught.recurrence.words}\n\n{text}"

    def check(self, rechecked: Rechecked) -> Iterator[Event]:
        """Record how the case of a past finding runs now. A fixed finding that passes again is not reported."""
        record = self.past[rechecked.finding]
        self.give_up(record.name)
        if rechecked.unsupported is not None:
            # Neither fixed nor open.
            text = f"finding {record.name} can't be run any more: {rechecked.unsupported}"
            yield Trouble(at=self.clock(), text=text)
            return
        if rechecked.inconclusive:
            text = f"finding {record.name} is flaky: it passed {rechecked.runs:,} runs, too few to call it fixed"
            yield Trouble(at=self.clock(), text=text)
            return
        now = _likest(record, rechecked.observations)
        state = self.archive.checked(record.name, fails=now is not None)
        if state is State.FIXED and record.state is State.FIXED:
            return
        observation = now or record.observation
        # A ledger entry for its old failure does not cover a new one.
        alike = fine(record.case, observation) == fine(record.case, record.observation)
        fingerprint = record.fingerprint if alike else Fingerprint.of(record.case.backend, observation)
        yield FindingChecked(
            at=self.clock(),
            name=record.name,
            fingerprint=record.fingerprint,
            case=record.case,
            observation=observation,
            path=str(record.path),
            needs=record.needs,
            ablated=record.ablated,
            cause=record.cause,
            state=state,
            runs=rechecked.runs,
            times=int(now is not None),
            recurrence=record.recurrence,
            known=self._known(fingerprint, record.case, record.name, record.cause if alike else ""),
        )

    def merge(self, same: SameCauses) -> Iterator[CausesMerged]:
        """Merge two causes, unless they are one already."""
        name, cause = self.knowledge.cause_of(same.name), self.knowledge.cause_of(same.cause)
        if not name or not cause or name == cause:
            return
        for finding in self.knowledge.findings.values():
            if self.knowledge.cause_of(finding.name) == name:
                self.archive.explained(finding.name, cause)
        yield CausesMerged(at=self.clock(), name=name, cause=cause, known=self.knowledge.findings[cause].known)

    def give_up(self, name: str) -> None:
        """Stop waiting for a past finding to be run again."""
        self._waiting.discard(name)

    def keep(self, suspect: Suspect | SuspectSeen, reason: str, tried: Recurrence | None = None) -> UnconfirmedKept:
        """Keep a failure that is not a finding, because of `reason`, after the reruns `tried`."""
        case, observation = suspect.case, suspect.observation
        again = "" if tried is None else f" {tried.words}"
        report = f"Unconfirmed: {reason}.{again}\n\n{self.render(case, Verdict(observations=(observation,)))}"
        # With the recurrence, a replay repeats the case.
        finding = Finding(case=case, first=case, observation=observation, report=report, recurrence=tried)
        path = self.archive.keep_unconfirmed(finding, suspect.fingerprint)
        return UnconfirmedKept(
            at=self.clock(),
            fingerprint=suspect.fingerprint,
            case=case,
            observation=observation,
            path=str(path),
            reason=reason,
            known=self.ledger.reason(suspect.fingerprint, case, finding.name),
        )


def _finding(caught: Caught, cause: str) -> Finding:
    return Finding(
        case=caught.case,
        first=caught.first,
        observation=caught.observation,
        report="",
        needs=caught.needs,
        ablated=caught.ablated,
        cause=cause,
        recurrence=caught.recurrence,
        history=caught.history,
    )


def _likest(record: Record, observations: Sequence[Observation]) -> Observation | None:
    """Return a finding's failure now: like the finding if possible, else the worst, or None if it passes."""
    failures = [observation for observation in observations if not observation.gap]
    same = (each for each in failures if fine(record.case, each) == fine(record.case, record.observation))
    return next(same, failures[0] if failures else None)
