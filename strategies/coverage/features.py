"""The features of a case, and the pairs of features that it covers."""

from bisect import bisect
from collections.abc import Collection, Iterable, Mapping
from itertools import chain, combinations, repeat
from types import MappingProxyType
from typing import Any

from attnfuzz.reference.case import Case
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.features.moments import moments_of
from attnfuzz.reference.features.row import Axis, T

Pair = tuple[str, str]
"""Two features of different axes, in alphabetical order."""

Axes = tuple[Axis[T], ...]

STEP_AXES: Axes[Any] = tuple(row.axis for row in TABLE if row.of_steps)
CASE_AXES: Axes[Any] = tuple(row.axis for row in TABLE if not row.of_steps)


def axes() -> Mapping[str, tuple[str, ...]]:
    """Return the features of each axis by the name of the axis, in the order for display. Axes of steps come first."""
    return _FEATURES


def axis_of(feature: str) -> str:
    """Return the name of a feature's axis. Raises KeyError for an unknown feature."""
    return _AXIS_OF[feature]


def all_features() -> Iterable[str]:
    """Return the features of all axes."""
    return _AXIS_OF.keys()


def features_of(case: Case) -> frozenset[str]:
    """Return features such as "mode=decode" of `case`, and of the steps that it runs."""
    return frozenset(chain(_of_case(case), *_of_steps(case)))


def pairs_of(case: Case) -> frozenset[Pair]:
    """Return the pairs of features that hold together: both for one step, or at least one for the whole case."""
    whole = _of_case(case)
    steps = _of_steps(case)
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
    return _of_case(case), _of_steps(case)


def pair(one: str, other: str) -> Pair:
    """Return a pair of two features, in alphabetical order."""
    return (one, other) if one < other else (other, one)


def _of_case(case: Case) -> list[str]:
    return sorted(_placed(case, _CASE_NAMES))


def _of_steps(case: Case) -> set[frozenset[str]]:
    return {frozenset(_placed(moment, _STEP_NAMES)) for moment in moments_of(case)}


def _named(table: Axes[T]) -> tuple[tuple[Axis[T], dict[str, str]], ...]:
    """Return each axis with its features by value. Computed once, so equal features are one string and compare fast."""
    return tuple((axis, dict(zip(axis.values, axis.features, strict=True))) for axis in table)


def _placed(subject: T, table: Iterable[tuple[Axis[T], dict[str, str]]]) -> list[str]:
    return [names[value] for axis, names in table for value in axis.place(subject)]


_CASE_NAMES, _STEP_NAMES = _named(CASE_AXES), _named(STEP_AXES)
_FEATURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {axis.name: tuple(names.values()) for axis, names in _STEP_NAMES}
    | {axis.name: tuple(names.values()) for axis, names in _CASE_NAMES}
)
_AXIS_OF = {feature: name for name, features in _FEATURES.items() for feature in features}
_OF_ONE_AXIS = frozenset(pair(*both) for features in _FEATURES.values() for both in combinations(features, 2))
