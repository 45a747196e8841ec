"""Pairs of causes that may be one: jobs that find one at the same time don't know each other's.

A hunt compares a failure with the causes known by then. A cause found later may explain it too, and findings of older
releases don't record their needs.
"""

from collections.abc import Collection, Iterator
from itertools import combinations

from attnfuzz.harness.campaign.events import FindingFiled
from attnfuzz.harness.campaign.knowledge import Knowledge
from attnfuzz.harness.campaign.under_way import UnderWay
from attnfuzz.harness.reduce.ablation import CONTENTS
from attnfuzz.harness.search.examples import derive_seed
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import CausePair, ShrinkBudget, Slice, SliceKind
from attnfuzz.harness.search.siblings import siblings_of

SHARE = 0.05
"""Share of the time for comparing, while there is something else to do."""

GRANTED_SECONDS = 20.0
"""Seconds for comparing on top of its share."""

MOST_PAIRS = 200
"""A campaign with many causes compares the likeliest pairs alone."""

COMPARISON = ShrinkBudget(runs=150, seconds=5.0)
"""The budget for comparing two causes, for each of the two."""


SIBLINGS = 4
"""The score of two causes that differ by sibling features: as if they shared a kernel and a backend."""


class Comparisons:
    """Provides slices that compare two causes, one of which was filed in this campaign.

    The causes share a kernel, a place or a needed feature. Compared pairs are folded from the events: a slice's seed
    follows from the names of its pair.
    """

    def __init__(self, knowledge: Knowledge, *, seed: int) -> None:
        self._knowledge = knowledge
        self._seed = seed

    def next_slice(self, at: float | None, under_way: Collection[UnderWay]) -> Slice | None:
        """The next slice; None if there is none or comparing has had its share. None for `at`: no limit."""
        knowledge = self._knowledge
        if at is not None and knowledge.seconds_compared > GRANTED_SECONDS + SHARE * at:
            return None
        done = knowledge.compared | {run.task.seed for run in under_way}
        if len(done) >= MOST_PAIRS:
            return None
        pairs = sorted(_pairs(knowledge), key=lambda pair: -_likeness(*pair))
        return next((task for pair in pairs if (task := self._slice(*pair)).seed not in done), None)

    def _slice(self, cause: KnownCause, other: KnownCause) -> Slice:
        # The order of the two may differ in a resumed campaign.
        names = sorted((cause.name, other.name))
        return Slice(
            backend=other.case.backend,
            kind=SliceKind.COMPARED,
            seed=derive_seed(self._seed, "compared", *names),
            examples=0,
            comparison=CausePair(cause=cause, other=other),
            first_only=True,
        )


def _pairs(knowledge: Knowledge) -> Iterator[tuple[KnownCause, KnownCause]]:
    """The pairs of causes that may be one."""
    for pair in combinations(knowledge.causes, 2):
        new = any(isinstance(knowledge.findings[cause.name], FindingFiled) for cause in pair)
        if new and _likeness(*pair):
            yield pair


def _likeness(cause: KnownCause, other: KnownCause) -> int:
    """Score how likely two causes are one; 0 if neither can explain the other.

    A cause can explain a case that has its marks. One without clues other than NaN in memory can explain a case in the
    same kernel, one that fails at the same place, or one that the same mistake explains.
    """
    if siblings_of(cause.needs, other.needs):
        return SIBLINGS
    same_kernel = not cause.kernels.isdisjoint(other.kernels)
    same_backend = cause.case.backend == other.case.backend
    same_place = cause.fingerprint.place == other.fingerprint.place
    same_mistake = not set(cause.mistakes).isdisjoint(other.mistakes)
    shared = len(cause.clues & other.clues - CONTENTS)
    near = same_kernel or same_place or same_mistake
    explicable = [
        one
        for one, its in ((cause, other), (other, cause))
        if one.marks_in(its.case) is not None and (one.clues - CONTENTS or near)
    ]
    if not explicable or not (near or shared):
        return 0
    return 2 * (shared + same_kernel + same_mistake) + same_backend + len(explicable)
