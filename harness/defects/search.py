"""The search for one planted defect: a campaign's search that ends with the first confirmed failure."""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.campaign.jobs import Jobs
from attnfuzz.harness.campaign.schedule import slices_of
from attnfuzz.harness.search.messages import AnyMessage, Caught, Lost, ShrinkBudget, Slice, SliceDone, Tally
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.kernels.defects.catalogue import backend_name
from attnfuzz.kernels.defects.defect import Defect

_CATCHES = {
    "guards": (Kind.ILLEGAL_ACCESS, Kind.MISALIGNED, Kind.CANARY_OVERWRITTEN, Kind.INPUT_MUTATED),
    "exception": (Kind.RAISED, Kind.UNEXPECTED_REJECTION),
    "watchdog": (Kind.HANG,),
    "worker": (Kind.WORKER_DIED,),
    "contract": (Kind.CONTRACT_BROKEN,),
}


def killer(observation: Observation) -> str:
    """The catcher of a failure: a tier of the judge, or a name in `_CATCHES`."""
    return observation.tier or next(name for name, kinds in _CATCHES.items() if observation.kind in kinds)


NO_SHRINKING = ShrinkBudget(runs=0, seconds=0.0)


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """How a defect was killed: `by` which `killer`, and as which failure; `also` are other killers of the same case."""

    by: str
    kind: Kind
    place: str
    mode: str
    also: tuple[str, ...]


class SearchOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a defect's search, after this many examples and seconds, confirmation included.

    `kill` is None for a survivor. `unconfirmed` counts failures that did not come back in a fresh worker.
    """

    defect: str
    seed: int
    examples: int
    seconds: float
    unconfirmed: int
    kill: Kill | None


class Search:
    """The search for `defect` in at most `examples` cases, in slices like a campaign's.

    `shrink` is the budget for shrinking the failure. `cases` counts the run cases, `caught` is the failure.
    """

    def __init__(self, defect: Defect, *, seed: int, examples: int, shrink: ShrinkBudget = NO_SHRINKING) -> None:
        self.defect = defect
        self.cases = 0
        self.caught: Caught | None = None
        self._seed = seed
        self._shrink = shrink
        self._slices = slices_of(backend_name(defect), examples=examples, seed=seed)
        self._next = next(self._slices, None)
        self._under_way = False
        self._examples = 0
        self._seconds = 0.0
        self._unconfirmed = 0

    @property
    def over(self) -> bool:
        """Whether the search has ended: a failure was found or all examples are spent, and no slice is running."""
        return not self._under_way and (self.caught is not None or self._next is None)

    def next_slice(self) -> Slice:
        """The next slice to run, while it is not over."""
        task, self._next = self._next, next(self._slices, None)
        assert task is not None
        self._under_way = True
        return replace(task, shrink=self._shrink, first_only=True)

    def take(self, message: AnyMessage) -> None:
        """Process a job's message about a slice."""
        match message:
            case Tally():
                self.cases += message.cases
            case Lost() | Caught(recurrence=Recurrence(seen_once=True)):
                self._unconfirmed += 1
            case Caught() if self.caught is None:
                self.caught = message
            case SliceDone():
                self._under_way = False
                self._examples += message.tally.searched
                self._seconds += message.seconds

    @property
    def outcome(self) -> SearchOutcome:
        """The search's outcome."""
        return SearchOutcome(
            defect=self.defect.name,
            seed=self._seed,
            examples=self._examples,
            seconds=round(self._seconds, 3),
            unconfirmed=self._unconfirmed,
            kill=None if self.caught is None else _kill(self.caught),
        )


def _kill(caught: Caught) -> Kill:
    seen = caught.observation
    by = killer(seen)
    others = {killer(each) for each in caught.verdict.failures} - {by}
    return Kill(by=by, kind=seen.kind, place=seen.place, mode=seen.mode, also=tuple(sorted(others)))


SECONDS_PER_LOOK = 1.0


def run_searches(searches: Iterable[Search], jobs: Jobs) -> Iterator[Search]:
    """Run all `searches`; yield each whenever it has news, lastly when it is over. Raises JobEnded."""
    waiting = iter(searches)
    running: dict[int, Search] = {}

    def begin_next(job: int) -> None:
        search = next(waiting, None)
        if search is not None:
            running[job] = search
            jobs.start(job, search.next_slice())

    for job in range(jobs.count):
        begin_next(job)
    while running:
        received = jobs.next_message(SECONDS_PER_LOOK)
        if received is None:
            continue
        job, message = received
        search = running[job]
        search.take(message)
        if isinstance(message, SliceDone):
            if search.over:
                del running[job]
                begin_next(job)
            else:
                jobs.start(job, search.next_slice())
        yield search
