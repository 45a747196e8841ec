"""Pairs of features that no case of a backend can have, with reasons: from the rules, and inferred from them."""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from types import MappingProxyType

from attnfuzz.reference.capability import Capability
from attnfuzz.strategies.coverage.axis import CASE_AXES, STEP_AXES
from attnfuzz.strategies.coverage.features import Pair, axes, axis_of, pair
from attnfuzz.strategies.coverage.pair_bits import ones
from attnfuzz.strategies.coverage.rules import LACKS, MEANING, NOT_DRAWN, Clash
from attnfuzz.strategies.coverage.rules_of_buckets import NO_MODULE, NONE_WITH_BOTH, together

_TOTAL = (
    *(axis.name for axis in STEP_AXES if axis.total),
    *(axis.name for axis in CASE_AXES if axis.total),
)
_CLASHES: tuple[Clash, ...] = (*MEANING, *NOT_DRAWN)


@cache
def impossible(capability: Capability) -> Mapping[Pair, str]:
    """Return the pairs of features that no case for this backend can have, each with its reason as a clause."""
    return MappingProxyType(_Exclusions(capability).pairs())


@cache
def possible_pairs(capability: Capability) -> frozenset[Pair]:
    """Return all other pairs of features of different axes."""
    return _all_pairs() - impossible(capability).keys()


@cache
def _all_pairs() -> frozenset[Pair]:
    several = list(axes().values())
    return frozenset(
        pair(*both)
        for number, features in enumerate(several)
        for others in several[number + 1 :]
        for both in product(features, others)
    )


class _Exclusions:
    """Features that exclude each other, with reasons. A feature that never occurs excludes itself.

    More exclusions follow from the rules: every step has a mode, so two features exclude each other if no mode is
    possible with both. The same holds for all other total axes. Sets of features are bit masks.
    """

    def __init__(self, can: Capability) -> None:
        self._features = [feature for features in axes().values() for feature in features]
        self._at = {feature: number for number, feature in enumerate(self._features)}
        self._excluded = [0] * len(self._features)
        self._reasons: dict[Pair, str] = {}
        for lack in LACKS:
            for feature in lack.of(can):
                self._never(feature, lack.reason)
        for clash in _CLASHES:
            if clash.where(can):
                for both in product(clash.these, clash.those):
                    self._exclude(*both, clash.reason)
        if can.buckets:
            self._follow_buckets(can)
        while self._follow():
            pass

    def pairs(self) -> dict[Pair, str]:
        """Return the pairs of features of different axes that exclude each other."""
        return {both: why for both, why in self._reasons.items() if axis_of(both[0]) != axis_of(both[1])}

    def _never(self, feature: str, reason: str) -> None:
        for other in self._features:
            self._exclude(feature, other, reason)

    def _exclude(self, one: str, other: str, reason: str) -> None:
        self._reasons.setdefault(pair(one, other), reason)
        self._excluded[self._at[one]] |= 1 << self._at[other]
        self._excluded[self._at[other]] |= 1 << self._at[one]

    def _follow_buckets(self, can: Capability) -> None:
        """Exclude features that no bucket has, and pairs that no single bucket has."""
        shown = together(can)
        for feature, others in shown.items():
            if not others:
                self._never(feature, NO_MODULE)
            for other in shown.keys() - others:
                self._exclude(feature, other, NONE_WITH_BOTH)

    def _follow(self) -> bool:
        """Exclude the direct consequences of the present exclusions. Returns whether there were any."""
        found = list(self._consequences())
        for one, other, axis in found:
            if one == other:
                self._never(one, f"nothing on the axis {axis} goes with it")
            else:
                self._exclude(one, other, f"nothing on the axis {axis} goes with both")
        return bool(found)

    def _consequences(self) -> Iterator[tuple[str, str, str]]:
        """Yield pairs of features that exclude all features of some axis, in order, each with the first such axis."""
        members = {axis: [self._at[feature] for feature in axes()[axis]] for axis in _TOTAL}
        for one, excluded in enumerate(self._excluded):
            others = ((1 << len(self._features)) - 1 >> one << one) & ~excluded
            found: list[tuple[int, str]] = []
            for axis, numbers in members.items():
                # Features that exclude all features of the axis that are possible with this one.
                alone = others
                for number in numbers:
                    if not excluded >> number & 1:
                        alone &= self._excluded[number]
                found += ((other, axis) for other in ones(alone))
                others &= ~alone
            for other, axis in sorted(found):
                yield self._features[one], self._features[other], axis
