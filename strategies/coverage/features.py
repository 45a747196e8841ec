"""The features of cases of attention, and the pairs of features that they cover."""

from bisect import bisect
from collections.abc import Collection, Iterable, Mapping
from itertools import chain, combinations, repeat

from attnfuzz.reference.case import Case
from attnfuzz.reference.features import TABLE
from attnfuzz.strategies.coverage.numbering import Pair, pair


def axes() -> Mapping[str, tuple[str, ...]]:
    """Return the features of each axis by the name of the axis, in the order for display. Axes of steps come first."""
    return TABLE.axes


def axis_of(feature: str) -> str:
    """Return the name of a feature's axis. Raises KeyError for an unknown feature."""
    return _AXIS_OF[feature]


def all_features() -> Iterable[str]:
    """Return the features of all axes."""
    return _AXIS_OF.keys()


def features_of(case: Case) -> frozenset[str]:
    """Return features such as "mode=decode" of `case`, and of the steps that it runs."""
    return TABLE.coverage_of(case)


def pairs_of(case: Case) -> frozenset[Pair]:
    """Return the pairs of features that hold together: both for one step, or at least one for the whole case."""
    whole, steps = features_of_parts(case)
    pairs = set(combinations(whole, 2))
    for step in steps:
        pairs.update(combinations(sorted(step), 2))
    pairs -= _OF_ONE_AXIS
    for feature in frozenset(chain(*steps)):
        at = bisect(whole, feature)
        pairs.update(zip(whole[:at], repeat(feature), strict=False))
        pairs.update(zip(repeat(feature), whole[at:], strict=False))
    return frozenset(pairs)


def features_of_parts(case: Case) -> tuple[list[str], Collection[frozenset[str]]]:
    """Return the features of the whole case, sorted, and those of each of its distinct steps."""
    return TABLE.of_case(case), TABLE.of_steps(case)


_AXIS_OF = {feature: name for name, features in axes().items() for feature in features}
_OF_ONE_AXIS = frozenset(pair(*both) for features in axes().values() for both in combinations(features, 2))
