"""The smallest case of a failure within its budget, and the clues that it needs."""

from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import TypeVar

from attnfuzz.harness.family import family_of
from attnfuzz.harness.reduce import SameCause, identity
from attnfuzz.harness.reduce.ablation import FEATURES, ablations, reseeded, unusual_in
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.needs import cause_of, hangs_late
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.features.row import Feature

C = TypeVar("C", bound=AnyCase)


def smallest(
    pinned: Pinned[C],
    known: KnownCause | None,
    allowed: Callable[[C], bool],
    *,
    capability: Capability | None,
    runs: int,
    plainly: bool,
) -> tuple[C, frozenset[Feature]]:
    """Return the smallest case that fails for the same cause, and the clues that both it and the first one need.

    A symptom keeps the marks of the `known` cause, which were tested: shrinking must not end with another cause. `runs`
    is the number of smaller cases tried. See `reduced` for `plainly`.
    """
    if pinned.reduced:
        return pinned.first, frozenset()
    if hangs_late(pinned):
        # Each run that hangs takes most of the budget.
        pinned.limit(ShrinkBudget(runs=0, seconds=0))
        return pinned.first, frozenset({FEATURES["late device"]})
    marks = None if known is None else _marks(pinned, known)
    cause = cause_of(pinned.first, pinned, allowed, marks=marks)
    plainly &= known is None
    return reduced(cause, pinned, capability=capability, stop=lambda: pinned.reduced, runs=runs, plainly=plainly)


def reduced(
    cause: SameCause[C],
    pinned: Pinned[C],
    *,
    capability: Capability | None,
    stop: Callable[[], bool],
    runs: int,
    plainly: bool,
) -> tuple[C, frozenset[Feature]]:
    """Return the smallest case of a cause, and the clues that it needs.

    If it may be made plain (`plainly`) and also fails with default contents, memory or batch, or without a clue, it is
    reduced further from there: its needs were those of values that are not plain, or of these values. Otherwise one of
    two bugs with the same symptom would turn into the other.
    """
    seen: set[Hashable] = set()
    while True:
        # Making candidates of a large case is slow, and has to end with the time.
        clues = frozenset() if pinned.spent else frozenset(each for each in cause.features if each.clue)
        case = cause.smallest(capability=capability, stop=stop, budget=runs)
        plain = _plain(cause, case) if plainly and not stop() else None
        seen.add(identity(case))
        # A family's plain cases, or two clues, may lead back to a case.
        if plain is None or stop() or identity(plain) in seen:
            return case, clues
        cause = cause_of(plain, pinned, cause.allowed)


def _plain(cause: SameCause[C], case: C) -> C | None:
    """Return the case with as many defaults as it fails with, or without a clue, or None."""
    own = SameCause(case, frozenset(), cause.fails, cause.allowed, cause.by_chance)
    plainer = chain(filter(cause.allowed, family_of(case).plain(case)), _without_clues(cause, case))
    return next(filter(own.shows_in, plainer), None)


def _without_clues(cause: SameCause[C], case: C) -> Iterator[C]:
    """Yield the case without each of its clues, with other values as well: those that it has may need the clue."""
    for _, variants in ablations(case, allowed=cause.allowed, among=unusual_in(case)):
        yield from chain.from_iterable(map(reseeded, variants))


def _marks(pinned: Pinned[C], known: KnownCause) -> frozenset[Feature] | None:
    observation = pinned.observation(pinned.first)
    if observation is not None and observation.exception in known.exceptions:
        # An exception that one line raises may need other features in each case.
        return None
    return known.marks_in(pinned.first)
