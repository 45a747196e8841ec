"""Comparing causes that may be one, since jobs that find one at the same time don't know each other's causes.

A hunt compares a failure with the causes known by then. A cause found later may explain it too, and findings of older
releases don't record their needs.
"""

from collections.abc import Collection, Iterator
from itertools import combinations

from attnfuzz.harness.campaign.events import FindingFiled
from attnfuzz.harness.campaign.knowledge import Knowledge
from attnfuzz.harness.campaign.under_way import UnderWay
from attnfuzz.harness.reduce.ablation import ARGUMENTS, CONTENTS
from attnfuzz.harness.search.examples import derive_seed
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import CausePair, ShrinkBudget, Slice, SliceKind
from attnfuzz.harness.search.misread import may_be_one_misreading
from attnfuzz.harness.search.siblings import siblings_of
from attnfuzz.reference.any_case import AnyCase

SHARE = 0.05
"""Share of each job's time for comparing, as long as there is something else to do."""

GRANTED_SECONDS = 20.0
"""Seconds of a job for comparing, in addition to its share."""

MOST_PAIRS = 500
"""A campaign with many causes only compares the likeliest pairs."""

COMPARISON = ShrinkBudget(runs=150, seconds=5.0)
"""The budget for comparing a finding of one cause with another cause."""

MOST_SECONDS = 10.0
"""Seconds for comparing two causes, by several findings of each."""

SIBLINGS = 4
"""The score of two causes with sibling features, one misread argument or one exception: the same as for a shared kernel
and backend.
"""


class Comparisons:
    """Provides slices that compare two causes, at least one of which was filed in this campaign.

    The causes share a kernel, a place or a needed feature. Two are compared again when one has about twice as many
    differing findings, since these predict more, or was minimized. Compared pairs are folded from the events: the seed
    of a slice follows from the names of its pair and from that number.
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
        pairs = sorted(_pairs(knowledge), key=lambda pair: -_likeness(*pair))
        return next((task for pair in pairs if (task := self._slice(*pair)).seed not in done), None)

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
    return f"{cause.name} by {len(cause.showings).bit_length()}" + ("" if cause.ablated else ", as drawn")


def _pairs(knowledge: Knowledge) -> Iterator[tuple[KnownCause, KnownCause]]:
    """Yield the pairs of causes that may be one."""
    for pair in combinations(knowledge.causes, 2):
        new = any(isinstance(knowledge.findings[cause.name], FindingFiled) for cause in pair)
        if new and _likeness(*pair):
            yield pair


def _likeness(cause: KnownCause, other: KnownCause) -> int:
    """Return a score of how likely two causes are one; 0 if neither can explain the other.

    A cause can explain a case in its backend or kernel that has its marks, and elsewhere if they are forms, edges or
    uses of arguments. One without clues other than NaN in memory can explain a case in the same kernel, one that fails
    at the same place, or one that the same mistake explains.
    """
    if may_be_one_misreading(cause, other) or cause.exceptions & other.exceptions:
        return SIBLINGS
    same_kernel = not cause.kernels.isdisjoint(other.kernels)
    same_backend = not _backends(cause).isdisjoint(_backends(other))
    shared = (cause.hints & other.clues) | (cause.clues & other.hints)
    if not (same_kernel or same_backend or shared & ARGUMENTS):
        return 0
    if siblings_of(cause.needs, other.needs):
        return SIBLINGS
    same_place = cause.fingerprint.place == other.fingerprint.place
    same_mistake = not set(cause.mistakes).isdisjoint(other.mistakes)
    near = same_kernel or same_place or same_mistake
    explicable = [
        one
        for one, its in ((cause, other), (other, cause))
        if any(_may_explain(way, case, near=near) for way in _ways(one) for case in _cases(its))
    ]
    if not explicable or not (near or shared):
        return 0
    return 2 * (len(shared - CONTENTS) + same_kernel + same_mistake) + same_backend + len(explicable)


def _may_explain(cause: KnownCause, case: AnyCase, *, near: bool) -> bool:
    return cause.marks_in(case) is not None and (near or bool(cause.clues - CONTENTS))


def _ways(cause: KnownCause) -> Iterator[KnownCause]:
    """Yield the cause as each of its findings shows it."""
    yield cause
    yield from map(cause.by, cause.showings)


def _cases(cause: KnownCause) -> Iterator[AnyCase]:
    return (each.case for each in _ways(cause))


def _backends(cause: KnownCause) -> frozenset[str]:
    return frozenset(each.backend for each in cause.symptoms)
