"""Rules for features, or pairs of them, that never occur, with reasons.

The backend does not support them, they exclude each other by their meaning, or they are not drawn. Rules name features
as reports do: "batch=1|2" are two values of an axis, "batch!=1" all others, "drafts" all of an axis, and "; " separates
axes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Features = tuple[str, ...]
Axes = Mapping[str, Features]
Holds = Callable[[Any], object]
"""Whether a rule holds for a backend, by its capability."""


def named(axes: Axes, patterns: str) -> Features:
    """Return the features that patterns name. Raises ValueError for an unknown axis or value."""
    return tuple(feature for pattern in patterns.split("; ") for feature in _named(axes, pattern))


def _named(axes: Axes, pattern: str) -> Features:
    axis, equals, values = pattern.partition("=")
    name = axis.removesuffix("!")
    wanted = {f"{name}={value}" for value in values.split("|")} if values else set()
    every = axes.get(name, ())
    if not every or wanted - set(every):
        raise ValueError(f"no such feature: {pattern}")
    inverted = axis.endswith("!") or not equals
    return tuple(feature for feature in every if (feature in wanted) is not inverted)


@dataclass(frozen=True)
class Lack:
    """Features that never occur with a backend, computed from its capability by `of`."""

    reason: str
    of: Callable[[Any], Features]


@dataclass(frozen=True)
class Clash:
    """Features that exclude each other on backends for which `where` holds: any of `features` and an `excluded` one."""

    reason: str
    features: Features
    excluded: Features
    where: Holds


def always(capability: object) -> bool:
    """Return True: a rule holds for every backend."""
    del capability
    return True


def clash(axes: Axes, reason: str, features: str, excluded: str, where: Holds = always) -> Clash:
    """Return a clash of the features that two patterns name."""
    return Clash(reason, named(axes, features), named(axes, excluded), where)


def besides(axes: Axes, axis: str, values: Iterable[object]) -> Features:
    """Return the features of an axis without those of some values."""
    kept = {f"{axis}={value}" for value in values}
    return tuple(feature for feature in axes[axis] if feature not in kept)


@dataclass(frozen=True)
class Together:
    """Features that only some alternatives show.

    `of` returns, for each feature that depends on them, the features that occur with it in one of them, itself
    included, or none if no alternative has it. The reasons are those of features that none has, and of pairs.
    """

    of: Callable[[Any], Mapping[str, frozenset[str]]]
    none: str
    none_with_both: str


@dataclass(frozen=True)
class Rules:
    """The rules of a family."""

    lacks: tuple[Lack, ...] = ()
    clashes: tuple[Clash, ...] = ()
    together: Together | None = None


NO_RULES = Rules()
"""All pairs of features occur."""
