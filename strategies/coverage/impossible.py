"""Pairs of features that no case of a backend can have, with reasons: from the rules, and inferred from them."""

from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.features import TABLE
from attnfuzz.strategies.coverage.features import Pair, axes
from attnfuzz.strategies.coverage.pair_bits import EVERY, PARTNERS, mask_of, ones, pairs_of_row, pairs_of_rows
from attnfuzz.strategies.coverage.rules import LACKS, MEANING, NOT_DRAWN, Clash
from attnfuzz.strategies.coverage.rules_of_buckets import NO_MODULE, NONE_WITH_BOTH, together

_TOTAL = {
    name: tuple(ones(mask_of(features)))
    for name, features in axes().items()
    if name not in {row.name for row in TABLE.rows if not row.axis.total}
}
"""The features of each axis of which every step, or every case, has one, as numbers."""

_CLASHES: tuple[Clash, ...] = (*MEANING, *NOT_DRAWN)


@cache
def impossible(capability: Capability) -> Mapping[Pair, str]:
    """Return the pairs of features that no case for this backend can have, each with its reason as a clause."""
    return MappingProxyType(_Exclusions(capability).reasons())


@cache
def possible_pairs(capability: Capability) -> frozenset[Pair]:
    """Return all other pairs of features of different axes."""
    excluded = _Exclusions(capability).rows
    return frozenset(pairs_of_rows(row & ~out for row, out in zip(PARTNERS, excluded, strict=True)))


class _Exclusions:
    """Features that exclude each other, with reasons. A feature that never occurs excludes itself.

    More exclusions follow from the rules: every step has a mode, so two features exclude each other if no mode is
    possible with both. The same holds for all other total axes. Sets of features are bit masks; `rows` has the features
    that each feature excludes.
    """

    def __init__(self, can: Capability) -> None:
        self.rows = [0] * len(PARTNERS)
        self._found: list[tuple[int, int, str]] = []
        for lack in LACKS:
            self._exclude(mask_of(lack.of(can)), EVERY, lack.reason)
        for clash in _CLASHES:
            if clash.where(can):
                self._exclude(mask_of(clash.features), mask_of(clash.excluded), clash.reason)
        if can.buckets:
            self._follow_buckets(can)
        while self._follow():
            pass

    def reasons(self) -> dict[Pair, str]:
        """Return the pairs of features of different axes that exclude each other, each with its first reason."""
        reasons: dict[Pair, str] = {}
        unexplained = list(PARTNERS)
        for left, right, reason in self._found:
            for features, others in ((left, right), (right, left)):
                for feature in ones(features):
                    row = others & unexplained[feature]
                    unexplained[feature] ^= row
                    reasons.update(dict.fromkeys(pairs_of_row(feature, row), reason))
        return reasons

    def _exclude(self, left: int, right: int, reason: str) -> None:
        """Exclude each feature of the mask `left` with each of `right`."""
        if not left or not right:
            return
        self._found.append((left, right, reason))
        for features, others in ((left, right), (right, left)):
            for feature in ones(features):
                self.rows[feature] |= others

    def _follow_buckets(self, can: Capability) -> None:
        """Exclude features that no bucket has, and pairs that no single bucket has."""
        shown = {feature: mask_of(others) for feature, others in together(can).items()}
        known = mask_of(shown)
        for feature, others in shown.items():
            alone = mask_of((feature,))
            self._exclude(alone, 0 if others else EVERY, NO_MODULE)
            self._exclude(alone, known & ~others, NONE_WITH_BOTH)

    def _follow(self) -> bool:
        """Exclude the direct consequences of the present exclusions. Returns whether there were any."""
        found = list(self._consequences())
        for one, others, axis in found:
            if others >> one & 1:
                self._exclude(1 << one, EVERY, f"nothing on the axis {axis} goes with it")
            self._exclude(1 << one, others & ~(1 << one), f"nothing on the axis {axis} goes with both")
        return bool(found)

    def _consequences(self) -> Iterator[tuple[int, int, str]]:
        """Yield features, and others with which they exclude all features of some axis, the first such axis."""
        for one, excluded in enumerate(self.rows):
            others = (EVERY >> one << one) & ~excluded
            for axis, members in _TOTAL.items():
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
