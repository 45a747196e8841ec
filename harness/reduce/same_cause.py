"""The identity of a cause during shrinking: its symptom, and the features that its failure needs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

from attnfuzz.harness.reduce.ablation import ablations, features_in, unusual_in
from attnfuzz.harness.reduce.plainest import plainest
from attnfuzz.harness.reduce.search import reduce
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.features.row import Feature

C = TypeVar("C", bound=AnyCase)

FRESH_SEEDS = 3
"""Number of value seeds, one of which must make a smaller case fail, if chance can produce the failure."""


@dataclass(frozen=True)
class SameCause(Generic[C]):
    """The clues that the failure of `case` needs.

    `fails` runs a case and returns whether it fails like the first one; `fails_without` tests a variant without one of
    the features, which may fail in another way for the same cause (default: `fails`). A smaller case has the same cause
    if it fails, has these features, and passes without each of them; otherwise something else makes it fail. It must
    not have a new clue either, such as fewer keys than queries in a request that was cut, because another bug may need
    that. If it fails `by_chance`, one of a few fresh value seeds has to make it fail too. If each failing run is
    `costly`, large steps come first.
    """

    case: C
    features: frozenset[Feature]
    fails: Callable[[C], bool]
    allowed: Callable[[C], bool] = lambda _: True
    by_chance: bool = False
    costly: bool = False
    fails_without: Callable[[C], bool] | None = None

    def shows_in(self, case: C) -> bool:
        """Return whether a smaller case fails for the same cause."""
        return (
            self.may_show_in(case)
            and self.fails(case)
            and (not self.by_chance or any(self.fails(case.reseeded(1 + n)) for n in range(FRESH_SEEDS)))
            and not self._fails_without(case)
        )

    def may_show_in(self, case: C) -> bool:
        """Return whether a smaller case has the features of the cause, and no new clue. Runs nothing."""
        return self.features <= features_in(case) and unusual_in(case) <= self._own

    def shown_before(self, stop: Callable[[], bool]) -> Callable[[C], bool]:
        """Return `shows_in` with an end: a check that was cut short shows nothing."""
        return lambda candidate: self.shows_in(candidate) and not stop()

    def smallest(
        self,
        *,
        capability: Capability | None = None,
        stop: Callable[[], bool] = lambda: False,
        budget: int = 500,
    ) -> C:
        """Return the smallest case reached by edits that fails for this cause, like `reduce`.

        Clues that the failure does not need are removed at the end, even if that makes the case larger. Whether NaN in
        memory is needed is first tested on the smallest case alone, and on every case only if that fails for another
        cause: these features would cost a run for each smaller case of many failures.
        """
        smallest = self.case
        for kept in dict.fromkeys((frozenset(each for each in self.features if not each.memory), self.features)):
            cause = replace(self, features=kept)
            shown = cause.shown_before(stop)
            likely = cause.may_show_in if self.costly else None
            smallest = reduce(self.case, shown, capability=capability, stop=stop, budget=budget, likely=likely)
            smallest = plainest(smallest, shown, allowed=self.allowed, among=unusual_in(smallest) - kept)
            if self.shows_in(smallest):
                break
        return smallest

    @cached_property
    def _own(self) -> frozenset[Feature]:
        return features_in(self.case)

    def _fails_without(self, case: C) -> bool:
        """Return whether a case fails without one of the features."""
        fails = self.fails_without or self.fails
        return any(
            fails(variant)
            for feature, variants in ablations(case, allowed=self.allowed, among=self.features)
            for variant in variants
        )
