"""Elementary draws: options, integers, and choices that a lean can bias.

Building a Hypothesis strategy costs more than drawing from it, so keep the result of `choice`. The other functions are
cached.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Generic, TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from attnfuzz.strategies.lean import Lean

T = TypeVar("T")

# Each slice of a search has another lean: caching the last few is enough.
_LEANS = 4
# Minimum ratio of favoured to other options in the draws of a choice.
_FAVOUR = 2


def choice(options: tuple[T, ...]) -> SearchStrategy[T]:
    """Return a strategy of `options`. Put the simplest first, for shrinking; repeated ones are more likely."""
    return st.sampled_from(options) if len(options) > 1 else st.just(options[0])


@cache
def integer(low: int, high: int) -> SearchStrategy[int]:
    """Return a strategy of integers in [low, high], which shrinks to `low`."""
    return st.integers(low, high)


@cache
def odds(no: int, yes: int) -> SearchStrategy[bool]:
    """Return a strategy that is True in `yes` of `no + yes` draws, and shrinks to False."""
    return choice((False,) * no + (True,) * yes)


class Choice(Generic[T]):
    """A choice whose options stand for features, so that a lean can favour some of them.

    `shows` returns the features that an option causes or makes more likely. `weighed` returns the options in their
    order under a lean: the favoured ones, which show most of its features, are repeated until they make up at least two
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
        """The features of each option. Computed once per option, which may be repeated a thousand times."""
        return {option: frozenset(self._shows(option)) for option in dict.fromkeys(self.options)}

    @cached_property
    def shown(self) -> frozenset[str]:
        """The features of all options together."""
        return frozenset().union(*self._features.values())

    def under(self, lean: Lean) -> SearchStrategy[T]:
        """Return a strategy of the options. Under a lean, at least two of three draws are favoured options."""
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
    """A flag that is True in `yes` of `no + yes` draws, and then shows the features `shows`. Shrinks to False."""

    def __init__(self, no: int, yes: int, shows: tuple[str, ...]) -> None:
        super().__init__((False,) * no + (True,) * yes, lambda drawn: shows if drawn else ())


def on(axis: str, value_of: Callable[[T], str] = str) -> Callable[[T], tuple[str]]:
    """Return a function from an option to its feature: its value on one axis, by `value_of`."""
    return lambda option: (f"{axis}={value_of(option)}",)


@cache
def _of_axis(axis: str, options: tuple[T, ...], value_of: Callable[[T], str]) -> Choice[T]:
    return Choice(options, on(axis, value_of))


def yes(drawn: object) -> str:
    """Return the value of a drawn flag on its axis."""
    return "yes" if drawn else "none"


@dataclass(frozen=True)
class Draws:
    """Draws of one case under a lean. Functions that name an option's value on an axis are those of a module."""

    draw: DrawFn
    lean: Lean

    def of(self, axis: str, options: tuple[T, ...], value_of: Callable[[T], str] = str) -> T:
        """Draw an option that shows its value on an axis. Repeated ones are more likely."""
        drawn: T = self.draw(_of_axis(axis, options, value_of).under(self.lean))
        return drawn

    def flag(self, axis: str, no: int, yes_: int) -> bool:
        """Draw True in `yes_` of `no + yes_` draws, which shows the value "yes" on an axis."""
        return self.of(axis, (False,) * no + (True,) * yes_, yes)

    def option(self, options: tuple[T, ...]) -> T:
        """Draw an option that shows nothing."""
        drawn: T = self.draw(_plain(options))
        return drawn

    def integer(self, low: int, high: int) -> int:
        """Draw an integer in [low, high]."""
        return self.draw(integer(low, high))

    def odds(self, no: int, yes_: int) -> bool:
        """Draw True in `yes_` of `no + yes_` draws."""
        return self.draw(odds(no, yes_))


@lru_cache(1024)
def _plain(options: tuple[T, ...]) -> SearchStrategy[T]:
    return choice(options)
