"""Results of running slices so far, and the part that no event has reported yet."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from attnfuzz.harness.campaign.events import Progress, SliceFinished, SliceStarted
from attnfuzz.harness.search.messages import Caught, Lost, Slice, SliceDone, Suspect, Tally
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase

SuspectKey = tuple[Fingerprint, AnyCase]


@dataclass
class UnderWay:
    """A job's results so far on `task`, which started at `since`.

    `again` are the suspects that the slice reruns, `suspects` its own unsettled ones. `unscripted` are the
    findings whose scripts its job is making, by their failures. `claimed` are the failures that it may settle
    (`Fingerprint.claimed`).
    """

    task: Slice
    since: float
    again: tuple[SuspectKey, ...] = ()
    tally: Tally = field(default_factory=Tally)
    suspects: dict[Fingerprint, Suspect] = field(default_factory=dict)
    unscripted: dict[SuspectKey, str] = field(default_factory=dict)
    claimed: set[Fingerprint] = field(default_factory=set)

    def started(self, job: int) -> SliceStarted:
        """Return the event of its start."""
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
        """Return the event of its end."""
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

    def minimizes(self, message: Suspect | Lost | Caught) -> bool:
        """Return whether a message is about the failure that the slice minimizes, which is on file."""
        own = self.task.minimized
        beside = isinstance(message, Caught) and message.beside
        return own is not None and own.fingerprint == message.fingerprint and not beside

    def settles(self, fingerprint: Fingerprint) -> bool:
        """Return whether the slice is settling such a failure, or is going to."""
        settled = {each.claimed for each, _ in self.held} | self.claimed
        return fingerprint.claimed in settled

    def settled(self, fingerprint: Fingerprint) -> Suspect:
        """Return a suspect that is settled now."""
        self.claimed.discard(fingerprint.claimed)
        return self.suspects.pop(fingerprint)

    @property
    def promised(self) -> int:
        """The number of examples that it still has to search."""
        return self.task.examples - self.tally.searched - self.tally.unsupported

    @property
    def held(self) -> set[SuspectKey]:
        """All suspects waiting for this slice."""
        return {*self.again, *((fingerprint, suspect.case) for fingerprint, suspect in self.suspects.items())}

    def so_far(self, at: float) -> SliceDone:
        """Return its end if its job is killed at `at`: the results so far."""
        return SliceDone(tally=self.tally, stopped_early=True, seconds=at - self.since, unsupported={})


SECONDS_PER_PROGRESS = 1.0


class Tallies:
    """Tallies of each backend not reported by an event yet. `clock` is the campaign's time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._unsent: dict[str, Tally] = {}
        self._reported_at: dict[str, float] = {}

    def add(self, backend: str, tally: Tally) -> None:
        """Count a tally."""
        self._unsent[backend] = self._unsent.get(backend, Tally()) + tally

    @property
    def unsent(self) -> dict[str, int]:
        """Each backend's searched examples that no event has reported yet."""
        return {backend: total.searched for backend, total in self._unsent.items()}

    def due(self) -> Iterator[Progress]:
        """Yield the progress of backends that reported none for a second."""
        for backend in list(self._unsent):
            if self._clock() - self._reported_at.get(backend, -SECONDS_PER_PROGRESS) >= SECONDS_PER_PROGRESS:
                yield from self.flush(backend)

    def flush(self, backend: str) -> Iterator[Progress]:
        """Yield the progress of `backend`, if it has some."""
        total = self._unsent.pop(backend, None)
        if total is not None:
            at = self._reported_at[backend] = self._clock()
            yield Progress(at=at, backend=backend, tally=total)
