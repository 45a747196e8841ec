"""The elementary draws.

Building a Hypothesis strategy costs more than drawing from it: keep the result of `choice`; the others are cached.
"""

from collections.abc import Callable, Iterable
from functools import cache, cached_property, lru_cache
from typing import Generic, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attnfuzz.strategies.lean import Lean

T = TypeVar("T")

# Leans change with every slice of a search: caching those of the last slices is enough.
_LEANS = 4
# Minimum ratio of favoured to other options in the draws of a choice.
_FAVOUR = 2


def choice(options: tuple[T, ...]) -> SearchStrategy[T]:
    """One of `options`: the simplest first, since shrinking goes there; repeated options are drawn more often."""
    return st.sampled_from(options) if len(options) > 1 else st.just(options[0])


@cache
def integer(low: int, high: int) -> SearchStrategy[int]:
    """An integer in [low, high] that shrinks to `low`."""
    return st.integers(low, high)


@cache
def odds(no: int, yes: int) -> SearchStrategy[bool]:
    """True in `yes` of `no + yes` draws; shrinks to False."""
    return choice((False,) * no + (True,) * yes)


class Choice(Generic[T]):
    """A choice whose options stand for features, so that a search can favour some of them.

    `shows` gives the features that an option causes or makes more likely. `weighed` gives the options in their order
    under a lean. The favoured ones, those that show most of its features, are repeated until they make up at least two
    thirds.
    """

    def __init__(self, options: tuple[T, ...], shows: Callable[[T], Iterable[str]]) -> None:
        self.options = options
        self._shows = shows
        self._plain = choice(options)
        self.weighed = lru_cache(_LEANS)(self._weighed)
        self._leaning = lru_cache(_LEANS)(self._leaned)

    @cached_property
    def _features(self) -> dict[T, frozenset[str]]:
        """The features of each option; an option may be repeated a thousand times."""
        return {option: frozenset(self._shows(option)) for option in dict.fromkeys(self.options)}

    @cached_property
    def shown(self) -> frozenset[str]:
        """The features of all options together."""
        return frozenset().union(*self._features.values())

    def under(self, lean: Lean) -> SearchStrategy[T]:
        """One of the options; under a lean, a favoured option in at least two of three draws."""
        return self._leaning(lean) if lean.features else self._plain

    def _weighed(self, lean: Lean) -> tuple[T, ...]:
        wanted = self.shown.intersection(lean.features)
        if not wanted:
            return self.options
        count = {option: len(wanted & features) for option, features in self._features.items()}
        most = max(count.values())
        favoured = sum(count[option] == most for option in self.options)
        others = len(self.options) - favoured
        times = max(1, -(-_FAVOUR * others // favoured))
        return tuple(option for option in self.options for _ in range(times if count[option] == most else 1))

    def _leaned(self, lean: Lean) -> SearchStrategy[T]:
        weighed = self.weighed(lean)
        return self._plain if len(weighed) == len(self.options) else choice(weighed)


class WeightedFlag(Choice[bool]):
    """True in `yes` of `no + yes` draws; True makes the features `shows` more likely. Shrinks to False."""

    def __init__(self, no: int, yes: int, shows: tuple[str, ...]) -> None:
        super().__init__((False,) * no + (True,) * yes, lambda drawn: shows if drawn else ())


def on(axis: str, value_of: Callable[[T], str] = str) -> Callable[[T], tuple[str]]:
    """Features of an option: its value on one axis, by `value_of`."""
    return lambda option: (f"{axis}={value_of(option)}",)
