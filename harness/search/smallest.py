"""The smallest case of a failure within its budget, and the clues that it needs."""

from collections.abc import Callable

from attnfuzz.harness.reduce.ablation import CLUES, FEATURES, Feature
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.search.needs import cause_of, hangs_late
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case


def smallest(
    pinned: Pinned[Case],
    known: KnownCause | None,
    allowed: Callable[[Case], bool],
    *,
    capability: Capability | None,
    runs: int,
) -> tuple[Case, frozenset[Feature]]:
    """Return the smallest case that fails for the same cause, and the clues that both it and the first one need.

    A symptom keeps the marks of the `known` cause, which were tested: shrinking must not end with another cause. `runs`
    is the number of smaller cases tried.
    """
    if pinned.reduced:
        return pinned.first, frozenset()
    if hangs_late(pinned):
        # Each run that hangs takes most of the budget.
        pinned.limit(ShrinkBudget(runs=0, seconds=0))
        return pinned.first, frozenset({FEATURES["late device"]})
    cause = cause_of(pinned.first, pinned, allowed, marks=None if known is None else _marks(pinned, known))
    clues = frozenset() if pinned.spent else cause.features & CLUES
    # Making candidates of a large case is slow, and has to end with the time.
    return cause.smallest(capability=capability, stop=lambda: pinned.reduced, budget=runs), clues


def _marks(pinned: Pinned[Case], known: KnownCause) -> frozenset[Feature] | None:
    observation = pinned.observation(pinned.first)
    if observation is not None and observation.exception in known.exceptions:
        # An exception that one line raises may need other features in each case.
        return None
    return known.marks_in(pinned.first)
