"""The draws that everything else is made of.

Building a Hypothesis strategy costs more than drawing from it: keep the result of `choice`, the others are cached.
"""

from functools import cache
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


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
