"""Look beneath known failures: run a case once more without the features that the known causes need."""

from collections.abc import Callable, Collection, Sequence

from attnfuzz.harness.reduce.ablation import Feature, ablations
from attnfuzz.harness.search.known import KnownCause
from attnfuzz.reference.case import Case

SHARE = 0.1
"""Share of the searched cases that may be run once more."""

MOST_TOGETHER = 4
"""Most causes with the same fingerprint; more are usually fragments of one."""


def explaining(causes: Collection[KnownCause], case: Case) -> Sequence[KnownCause] | None:
    """Return the causes that may make `case` fail, of those with its failure's fingerprint.

    An empty list: something else does. None: unknown, since a cause shows in all cases, or its needs are unknown.
    """
    if not causes or len(causes) >= MOST_TOGETHER or not all(cause.clues for cause in causes):
        return None
    return [cause for cause in causes if cause.may_show_in(case)]


def without(case: Case, causes: Sequence[KnownCause], allowed: Callable[[Case], bool], *, turn: int) -> Case | None:
    """Return `case` without one feature that each of `causes` needs; None if there is no such variant.

    `turn` rotates the choice of features: a failure beneath may need some of them too.
    """
    for cause in causes:
        if cause.may_show_in(case):
            clues = sorted(cause.clues)
            variant = _without(case, clues[turn % len(clues)], allowed)
            if variant is None:
                return None
            case = variant
    return case


def _without(case: Case, feature: Feature, allowed: Callable[[Case], bool]) -> Case | None:
    return next((each.variants[0] for each in ablations(case, allowed=allowed, among={feature})), None)
