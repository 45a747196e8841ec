"""Comparing causes that may be one, since jobs that find one at the same time don't know each other's causes.

A hunt compares a failure with the causes known by then. A cause found later may explain it too.
"""

from collections.abc import Collection
from itertools import combinations

from attnfuzz.harness.campaign.events import FindingFiled
from attnfuzz.harness.campaign.knowledge import Knowledge
from attnfuzz.harness.campaign.under_way import UnderWay
from attnfuzz.harness.search.examples import derive_seed
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import CausePair, ShrinkBudget, Slice, SliceKind
from attnfuzz.harness.search.misread import may_be_one_misreading

SHARE = 0.05
"""Share of each job's time for comparing, as long as there is something else to do."""

GRANTED_SECONDS = 20.0
"""Seconds of a job for comparing, in addition to its share."""

MOST_PAIRS = 500
"""A campaign with many causes only compares the likeliest pairs."""

COMPARISON = ShrinkBudget(runs=150, seconds=5.0)
"""The budget for testing whether one cause explains the other."""

MOST_SECONDS = 10.0
"""Seconds for comparing two causes."""

_SURE = 100
"""The score of two causes with one misread argument or one exception."""


class Comparisons:
    """Provides slices that compare two causes, at least one of which was filed in this campaign.

    Two are compared again when one was minimized. Compared pairs are folded from the events: the seed of a slice
    follows from the names of its pair.
    """

    def __init__(self, knowledge: Knowledge, *, seed: int, jobs: int = 1) -> None:
        self._knowledge = knowledge
        self._seed = seed
        self._jobs = jobs

    def next_slice(self, at: float | None, under_way: Collection[UnderWay]) -> Slice | None:
        """Return the next slice, or None if there is none or comparing has used its share. No limit if `at` is None."""
        knowledge = self._knowledge
        if at is not None and knowledge.seconds_compared > self._jobs * (GRANTED_SECONDS + SHARE * at):
            return None
        done = knowledge.compared | {run.task.seed for run in under_way}
        if len(done) >= MOST_PAIRS:
            return None
        new = {name for name, finding in knowledge.findings.items() if isinstance(finding, FindingFiled)}
        pairs = (each for each in combinations(knowledge.causes, 2) if new & {cause.name for cause in each})
        scores = {pair: score for pair in pairs if (score := _likeness(*pair))}
        likeliest = sorted(scores, key=lambda pair: -scores[pair])
        return next((task for pair in likeliest if (task := self._slice(*pair)).seed not in done), None)

    def _slice(self, cause: KnownCause, other: KnownCause) -> Slice:
        # The order of the two may differ in a resumed campaign.
        known = sorted(map(_version, (cause, other)))
        return Slice(
            backend=other.case.backend,
            kind=SliceKind.COMPARED,
            seed=derive_seed(self._seed, "compared", *known),
            examples=0,
            shrink=COMPARISON,
            comparison=CausePair(cause=cause, other=other),
            first_only=True,
        )


def _version(cause: KnownCause) -> str:
    return cause.name if cause.ablated else f"{cause.name}, as drawn"


def _likeness(cause: KnownCause, other: KnownCause) -> int:
    """Return a score of how likely two causes are one; 0 if neither can explain the other."""
    if may_be_one_misreading(cause, other) or cause.exceptions & other.exceptions:
        return _SURE
    same_kernel = not cause.kernels.isdisjoint(other.kernels)
    families = ({each.family for each in one.symptoms} for one in (cause, other))
    explicable = sum(one.marks_in(its.case) is not None for one, its in ((cause, other), (other, cause)))
    near = same_kernel or cause.case.backend == other.case.backend
    alike = near and explicable and set.intersection(*families)
    return 1 + explicable + same_kernel + len(cause.clues & other.clues) if alike else 0
