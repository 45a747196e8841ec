"""An axis of the case space, and how a case is placed on it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Axis(Generic[T]):
    """One way in which cases (or steps) differ: `values` in a natural order, the plain one first where there is one.

    `place` gives the values that hold for a case or a step. There may be several, as for the KV lengths of a batch;
    there are none where the axis does not apply, unless it is `total`.
    """

    name: str
    values: tuple[str, ...]
    place: Callable[[T], Iterable[str]]
    total: bool = True

    def feature(self, value: str) -> str:
        """The feature that stands for a value of this axis, as in "mode=decode"."""
        return f"{self.name}={value}"

    @property
    def features(self) -> tuple[str, ...]:
        """The features of this axis, in its order."""
        return tuple(map(self.feature, self.values))


def single(name: str, values: tuple[str, ...], place: Callable[[T], str]) -> Axis[T]:
    """An axis on which everything has exactly one value."""
    return Axis(name, values, lambda subject: (place(subject),))
