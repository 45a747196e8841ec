"""Pairs of features that no case of a backend can have: from the rules, and inferred from them."""

from collections.abc import Iterator, Mapping
from typing import Any

from attnfuzz.strategies.coverage.numbering import Numbering, Pair, ones
from attnfuzz.strategies.coverage.rules import Rules, Together


class Exclusions:
    """Features that exclude each other, with reasons. A feature that never occurs excludes itself.

    More exclusions follow from the rules: every step has a mode, so two features exclude each other if no mode is
    possible with both. The same holds for all other total axes. Sets of features are bit masks; `rows` has the features
    that each feature excludes.
    """

    def __init__(self, numbers: Numbering, total: Mapping[str, tuple[int, ...]], rules: Rules, can: Any) -> None:
        """Make the exclusions of a backend with the capability `can`. `total` has the numbers of each total axis."""
        self._numbers, self._total = numbers, total
        self.rows = [0] * len(numbers.partners)
        self._found: list[tuple[int, int, str]] = []
        mask_of = numbers.mask_of
        for lack in rules.lacks:
            self._exclude(mask_of(lack.of(can)), numbers.every, lack.reason)
        for clash in rules.clashes:
            if clash.where(can):
                self._exclude(mask_of(clash.features), mask_of(clash.excluded), clash.reason)
        if rules.together is not None:
            self._follow_alternatives(rules.together, can)
        while self._follow():
            pass

    def reasons(self) -> dict[Pair, str]:
        """Return the pairs of features of different axes that exclude each other, each with its first reason."""
        reasons: dict[Pair, str] = {}
        unexplained = list(self._numbers.partners)
        for left, right, reason in self._found:
            for features, others in ((left, right), (right, left)):
                for feature in ones(features):
                    row = others & unexplained[feature]
                    unexplained[feature] ^= row
                    reasons.update(dict.fromkeys(self._numbers.pairs_of_row(feature, row), reason))
        return reasons

    def _exclude(self, left: int, right: int, reason: str) -> None:
        """Exclude each feature of the mask `left` with each of `right`."""
        if not left or not right:
            return
        self._found.append((left, right, reason))
        for features, others in ((left, right), (right, left)):
            for feature in ones(features):
                self.rows[feature] |= others

    def _follow_alternatives(self, together: Together, can: Any) -> None:
        """Exclude features that no alternative has, and pairs that no single one has."""
        mask_of, every = self._numbers.mask_of, self._numbers.every
        shown = {feature: mask_of(others) for feature, others in together.of(can).items()}
        known = mask_of(shown)
        for feature, others in shown.items():
            alone = mask_of((feature,))
            self._exclude(alone, 0 if others else every, together.none)
            self._exclude(alone, known & ~others, together.none_with_both)

    def _follow(self) -> bool:
        """Exclude the direct consequences of the present exclusions. Returns whether there were any."""
        found = list(self._consequences())
        for one, others, axis in found:
            if others >> one & 1:
                self._exclude(1 << one, self._numbers.every, f"nothing on the axis {axis} goes with it")
            self._exclude(1 << one, others & ~(1 << one), f"nothing on the axis {axis} goes with both")
        return bool(found)

    def _consequences(self) -> Iterator[tuple[int, int, str]]:
        """Yield features, and others with which they exclude all features of some axis, the first such axis."""
        for one, excluded in enumerate(self.rows):
            others = (self._numbers.every >> one << one) & ~excluded
            for axis, members in self._total.items():
                # Features that exclude all features of the axis that are possible with this one.
                alone = others
                for member in members:
                    if not alone:
                        break
                    if not excluded >> member & 1:
                        alone &= self.rows[member]
                if alone:
                    yield one, alone, axis
                    others &= ~alone
