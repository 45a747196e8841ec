"""The draws that everything else is made of.

Building a Hypothesis strategy costs more than drawing from it: keep the result of `choice`, the others are cached.
"""

from collections.abc import Callable, Iterable
from functools import cache, cached_property, lru_cache
from typing import Generic, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attnfuzz.strategies.lean import Lean

T = TypeVar("T")

# Leans change with every slice of a search: those of the last slices are enough to remember.
_LEANS = 4
# How often what a lean favours is drawn for once that anything else is, at a choice where it was drawn less often.
_FAVOUR = 2


def choice(options: tuple[T, ...]) -> SearchStrategy[T]:
    """One of `options`. The simplest comes first, for shrinking goes there; what is repeated is drawn more often."""
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
    """A choice whose options stand for features, so that a search can lean to some of them.

    `shows` gives the features that a case shows, or is more likely to show, if an option is drawn. `weighed` gives the
    options in their order under a lean, those that it favours repeated until they are two thirds of all at least: the
    options that show most of its features.
    """

    def __init__(self, options: tuple[T, ...], shows: Callable[[T], Iterable[str]]) -> None:
        self.options = options
        self._shows = shows
        self._plain = choice(options)
        self.weighed = lru_cache(_LEANS)(self._weighed)
        self._leaning = lru_cache(_LEANS)(self._leaned)

    @cached_property
    def shown(self) -> frozenset[str]:
        """What the options show, all together."""
        return frozenset(feature for option in self.options for feature in self._shows(option))

    def under(self, lean: Lean) -> SearchStrategy[T]:
        """One of the options; under a lean, one of the options that it favours in two of three draws at least."""
        return self._leaning(lean) if lean.features else self._plain

    def _weighed(self, lean: Lean) -> tuple[T, ...]:
        wanted = frozenset(lean.features)
        counts = [len(wanted.intersection(self._shows(option))) for option in self.options]
        most = max(counts)
        favoured = counts.count(most)
        others = len(counts) - favoured
        times = max(1, -(-_FAVOUR * others // favoured)) if most else 1
        return tuple(
            option
            for option, count in zip(self.options, counts, strict=True)
            for _ in range(times if count == most else 1)
        )

    def _leaned(self, lean: Lean) -> SearchStrategy[T]:
        weighed = self.weighed(lean)
        return self._plain if len(weighed) == len(self.options) else choice(weighed)


class WeightedFlag(Choice[bool]):
    """True in `yes` of `no + yes` draws, which makes the features `shows` more likely; shrinks to False."""

    def __init__(self, no: int, yes: int, shows: tuple[str, ...]) -> None:
        super().__init__((False,) * no + (True,) * yes, lambda drawn: shows if drawn else ())


def on(axis: str, value_of: Callable[[T], str] = str) -> Callable[[T], tuple[str]]:
    """What an option shows whose value on an axis is `value_of` it."""
    return lambda option: (f"{axis}={value_of(option)}",)
