"""A slice that a job runs right now."""

from dataclasses import dataclass, field

from attnfuzz.harness.campaign.events import SliceFinished, SliceStarted
from attnfuzz.harness.search.messages import Slice, SliceDone, Suspect, Tally
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case

SuspectKey = tuple[Fingerprint, Case]


@dataclass
class UnderWay:
    """What a job has told of `task`, which it was handed at `since`.

    `again` are the suspects that the slice runs once more, `suspects` those that it met and has not settled.
    """

    task: Slice
    since: float
    again: tuple[SuspectKey, ...] = ()
    tally: Tally = field(default_factory=Tally)
    suspects: dict[Fingerprint, Suspect] = field(default_factory=dict)

    def started(self, job: int) -> SliceStarted:
        """The event that says so."""
        task = self.task
        examples = len(task.replays) if task.replays else task.examples
        return SliceStarted(
            at=self.since,
            job=job,
            backend=task.backend,
            kind=task.kind,
            index=task.index,
            seed=task.seed,
            examples=examples,
        )

    def finished(self, at: float, done: SliceDone) -> SliceFinished:
        """The event that says that it ended."""
        return SliceFinished(
            at=at,
            backend=self.task.backend,
            kind=self.task.kind,
            index=self.task.index,
            seed=self.task.seed,
            examples=done.tally.searched,
            cases=done.tally.cases,
            deaths=done.tally.deaths,
            seconds=done.seconds,
            unsupported=done.unsupported,
        )

    @property
    def promised(self) -> int:
        """The examples that it has still to search."""
        return self.task.examples - self.tally.searched

    @property
    def held(self) -> set[SuspectKey]:
        """All suspects that wait for this slice."""
        return {*self.again, *((fingerprint, suspect.case) for fingerprint, suspect in self.suspects.items())}

    def so_far(self, at: float) -> SliceDone:
        """How it ends if its job is killed at `at`: with what it has told."""
        return SliceDone(tally=self.tally, stopped_early=True, seconds=at - self.since, unsupported={})
