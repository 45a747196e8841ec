"""The features that a failure needs, found within the budget for shrinking it."""

from collections.abc import Callable, Collection

from attnfuzz.harness.reduce.ablation import Feature, features_in, needed
from attnfuzz.harness.search.pinned import Pinned
from attnfuzz.reference.case import Case


def needs_of(
    pinned: Pinned[Case], case: Case, allowed: Callable[[Case], bool], *, clues: Collection[Feature] = ()
) -> tuple[str, ...]:
    """Return the names of the features that the failure of `case` needs, as far as the budget lasts to find out.

    `clues` are known to be needed: shrinking kept them.
    """

    def shown(feature: Feature) -> bool:
        # A check that was cut short shows nothing.
        return bool(needed(case, pinned.fails, allowed=allowed, among={feature})) and not pinned.spent

    clues_first = sorted(features_in(case), key=lambda each: (not each.clue, each.name))
    return tuple(feature.name for feature in clues_first if feature in clues or shown(feature))
