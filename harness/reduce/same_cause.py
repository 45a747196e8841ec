"""The identity of a cause during shrinking: its symptom, and the features that its failure needs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

from msgspec.structs import replace

from attnfuzz.harness.reduce.ablation import CLUES, Feature, ablations, features_in, needed
from attnfuzz.harness.reduce.search import reduce
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case

FRESH_SEEDS = 3
"""Value seeds of which one has to make a smaller case fail, if chance can produce the failure."""


@dataclass(frozen=True)
class SameCause:
    """The clues that the failure of a case needs.

    `fails` runs a case and returns whether it fails like the first one. A smaller case has the same cause if it fails,
    has these features, and passes without each of them; otherwise something else makes it fail. If it fails
    `by_chance`, one of a few fresh value seeds has to make it fail too.
    """

    features: frozenset[Feature]
    fails: Callable[[Case], bool]
    allowed: Callable[[Case], bool] = lambda _: True
    by_chance: bool = False

    @classmethod
    def of(
        cls,
        case: Case,
        fails: Callable[[Case], bool],
        *,
        allowed: Callable[[Case], bool] = lambda _: True,
        by_chance: bool = False,
    ) -> Self:
        """Find the features that the failure of `case` needs, by ablation."""
        features = needed(case, fails, allowed=allowed, among=CLUES)
        return cls(features, fails, allowed, by_chance)

    def shows_in(self, case: Case) -> bool:
        """Whether a smaller case fails for the same cause."""
        return (
            self.features <= features_in(case)
            and self.fails(case)
            and (
                not self.by_chance or any(self.fails(replace(case, seed=case.seed + 1 + n)) for n in range(FRESH_SEEDS))
            )
            and not self._fails_without(case)
        )

    def smallest(
        self,
        case: Case,
        *,
        capability: Capability | None = None,
        stop: Callable[[], bool] = lambda: False,
        budget: int = 500,
    ) -> Case:
        """Return the smallest case reached by edits that fails for this cause, like `reduce`."""

        def same_cause(candidate: Case) -> bool:
            # A check that was cut short shows nothing.
            return self.shows_in(candidate) and not stop()

        return reduce(case, same_cause, capability=capability, stop=stop, budget=budget)

    def _fails_without(self, case: Case) -> bool:
        """Whether a case fails without one of the features."""
        return any(
            self.fails(variant)
            for feature, variants in ablations(case, allowed=self.allowed, among=self.features)
            for variant in variants
        )


def _reseeded(case: Case) -> Iterator[Case]:
    return (replace(case, seed=case.seed + 1 + number) for number in range(FRESH_SEEDS))
