"""Minimizing causes with unknown needs: their cases are shrunk again in the last part of a campaign.

A failure that is found when shrinking has used up its share of the time is filed as it was drawn. Such a cause explains
little, so symptoms of one bug are not merged.
"""

from attnfuzz.harness.campaign.events import Event, FindingMinimized, SliceFinished, SliceStarted
from attnfuzz.harness.campaign.knowledge import Knowledge
from attnfuzz.harness.campaign.shrinking import FULL
from attnfuzz.harness.family import family_of
from attnfuzz.harness.search.examples import derive_seed
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import ShrinkBudget, Slice, SliceKind

SHARE = 0.2
"""The last part of a search's time, in which causes without needs come before new cases. Without a time limit, the
share of the time so far that they may take after the last case.
"""

GRANTED_SECONDS = 20.0
"""Seconds of a job in addition to that, without a time limit: a short campaign minimizes its first causes."""

LEAST_SECONDS = 5.0
"""Minimum time for one cause: in less, hardly any failure is minimized."""


MOST = ShrinkBudget(runs=3 * FULL.runs, seconds=3 * FULL.seconds)
"""The budget for one cause if there is time: more than before, which was not enough."""


class Minimizing:
    """Provides slices that shrink the case of a cause again, once each, starting with the fastest to compute.

    Causes in the ledger and flaky failures are left out. A handler of events: the seed of a slice follows from the
    cause's name.
    """

    def __init__(self, knowledge: Knowledge, *, seed: int, jobs: int = 1) -> None:
        self._knowledge = knowledge
        self._seed = seed
        self._jobs = jobs
        self._begun: set[int] = set()
        self._minimized: set[str] = set()
        self._spent = 0.0

    def __call__(self, event: Event) -> None:
        """Learn from `event`."""
        match event:
            case SliceStarted(kind=SliceKind.MINIMIZED, seed=seed):
                # A slice that was cut short by a kill is not started again, since it may be the reason.
                self._begun.add(seed)
            case SliceFinished(kind=SliceKind.MINIMIZED, seconds=seconds):
                self._spent += seconds
            case FindingMinimized(finding=finding):
                self._minimized.add(finding.name)

    def next_slice(self, at: float, seconds: float | None) -> Slice | None:
        """Return the next slice at this time of a search of `seconds`, or None if there is none or it is too early."""
        left = self._left(at, seconds)
        waiting = self._waiting() if left > 0 else []
        if not waiting:
            return None
        cause = min(waiting, key=lambda each: (family_of(each.case).work(each.case), each.name))
        fair = max(LEAST_SECONDS, left / len(waiting))
        return Slice(
            backend=cause.case.backend,
            kind=SliceKind.MINIMIZED,
            seed=self._seed_of(cause),
            examples=0,
            shrink=ShrinkBudget(runs=MOST.runs, seconds=min(MOST.seconds, fair)),
            minimized=cause,
        )

    def _left(self, at: float, seconds: float | None) -> float:
        """Return the seconds that are left for minimizing, over all jobs; 0 if its time has not begun."""
        if seconds is None:
            return self._jobs * (GRANTED_SECONDS + SHARE * at) - self._spent
        return self._jobs * (seconds - at) if at >= (1 - SHARE) * seconds else 0.0

    def _waiting(self) -> list[KnownCause]:
        findings = self._knowledge.findings
        return [
            cause
            for cause in self._knowledge.causes
            if not (cause.ablated or findings[cause.name].known or findings[cause.name].recurrence)
            and cause.name not in self._minimized
            and self._seed_of(cause) not in self._begun
        ]

    def _seed_of(self, cause: KnownCause) -> int:
        return derive_seed(self._seed, "minimized", cause.name)
