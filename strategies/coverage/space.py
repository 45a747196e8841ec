"""The space of a family's cases: the pairs of features that they show, and those that a backend can reach.

A campaign compares the 1,000 to 3,000 pairs of each case with those reached before. Sets of tuples take milliseconds,
so a set of pairs is an integer with one bit per pair, and compared in a few microseconds.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any

from attnfuzz.reference.features.table import FeatureTable
from attnfuzz.strategies.coverage.exclusions import Exclusions
from attnfuzz.strategies.coverage.numbering import Numbering, Pair, ones, pair
from attnfuzz.strategies.coverage.rules import NO_RULES, Rules


class CaseSpace:
    """The features of a table, and their pairs. `rules` are those of features, or pairs of them, that never occur."""

    def __init__(self, table: FeatureTable, rules: Rules = NO_RULES) -> None:
        self.table = table
        self._numbers = Numbering(table.axes)
        total = [row.name for row in table.rows if row.axis.total]
        self._total = {name: tuple(ones(self._numbers.mask_of(table.axes[name]))) for name in total}
        self._rules = rules
        # Capabilities of backends that are loaded: each is asked for again and again.
        self.impossible = lru_cache(maxsize=None)(self._impossible)
        self.possible_pairs = lru_cache(maxsize=None)(self._possible_pairs)

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """The features of each axis by the name of the axis, in the order for display. Axes of steps come first."""
        return self.table.axes

    def pair_bits(self, case: Any) -> int:
        """Return the pairs of features that hold together, as bits: both for one step, or one for the whole case."""
        numbers = self._numbers
        whole, steps = self.table.of_case(case), self.table.of_steps(case)
        mask = of_all = numbers.mask_of(whole)
        partners: dict[str, int] = {}
        for step in steps:
            own = numbers.mask_of(step)
            of_all |= own
            for name in step:
                partners[name] = partners.get(name, mask) | own
        partners.update(dict.fromkeys(whole, of_all))
        return numbers.bits_of_rows(partners)

    def pairs_in(self, bits: int) -> tuple[Pair, ...]:
        """Return the pairs of a set, sorted."""
        return self._numbers.pairs_in(bits)

    def beside(self, feature: str, capability: Any) -> frozenset[str]:
        """Return a feature, and all others that a case for this backend can have with it."""
        possible = self.possible_pairs(capability)
        return frozenset(each for each in self.features() if pair(feature, each) in possible) | {feature}

    def _impossible(self, capability: Any) -> Mapping[Pair, str]:
        """Return the pairs of features that no case for this backend can have, each with its reason as a clause."""
        return MappingProxyType(self._exclusions(capability).reasons())

    def _possible_pairs(self, capability: Any) -> frozenset[Pair]:
        """Return all other pairs of features of different axes."""
        excluded, numbers = self._exclusions(capability).rows, self._numbers
        return frozenset(numbers.pairs_of_rows(row & ~out for row, out in zip(numbers.partners, excluded, strict=True)))

    def _exclusions(self, capability: Any) -> Exclusions:
        return Exclusions(self._numbers, self._total, self._rules, capability)

    def known(self, pairs: Iterable[Pair]) -> frozenset[Pair]:
        """Return those of `pairs` whose features are of this space: those of another version are not."""
        features = frozenset(chain(*self.axes.values()))
        return frozenset(each for each in pairs if features.issuperset(each))

    def features(self) -> Iterator[str]:
        """Return the features of all axes."""
        return chain(*self.axes.values())
