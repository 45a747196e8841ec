"""The form of a rule that says why some features, or some pairs of them, never occur."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from attnfuzz.reference.capability import Capability
from attnfuzz.strategies.coverage.features import axes

Features = tuple[str, ...]


@dataclass(frozen=True)
class Lack:
    """The features `of` a backend that never occur with it."""

    reason: str
    of: Callable[[Capability], Features]


@dataclass(frozen=True)
class Clash:
    """None of `these` occurs together with any of `those`, with a backend of which `where` holds."""

    reason: str
    these: Features
    those: Features
    where: Callable[[Capability], bool] = lambda _: True


def named(axis: str, *values: str) -> Features:
    """The features of an axis by their values. ValueError if it has no such value."""
    wanted = tuple(f"{axis}={value}" for value in values)
    if unknown := set(wanted) - set(axes()[axis]):
        raise ValueError(f"no such feature: {', '.join(sorted(unknown))}")
    return wanted


def besides(axis: str, *values: str) -> Features:
    """All features of an axis but those with these values. ValueError if it has no such value."""
    return without(axis, named(axis, *values))


def without(axis: str, features: Iterable[str]) -> Features:
    """All features of an axis but these."""
    left_out = frozenset(features)
    return tuple(feature for feature in axes()[axis] if feature not in left_out)
