"""The stage that finds the known cause of a failure, for whatever fails: a case, or a trace of a server.

A cause is known by the features that its failures need, its marks. It explains a failure if two predictions hold when
they are run: the failure passes without each of the marks, and it fails with the marks alone.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Any, Protocol, TypeVar

X = TypeVar("X")
C_contra = TypeVar("C_contra", contravariant=True)
C = TypeVar("C")


class Predictions(Protocol[X, C_contra]):
    """The predictions of causes of class C about a failing input of class X."""

    def over(self) -> bool:
        """Return whether there is no time for another cause."""

    def marks(self, cause: C_contra, tried: X) -> Collection[Any] | None:
        """Return the features of the input that mark the cause, or None if the cause can't show in it."""

    def without(self, tried: X, marks: Collection[Any]) -> Iterator[X]:
        """Yield variants of the input, each without one of the marks."""

    def fails(self, variant: X) -> bool:
        """Run a variant, and return whether it fails like the input."""

    def passes(self, cause: C_contra, variant: X, marks: Collection[Any]) -> bool:
        """Return whether a variant that was run passes, as far as the cause is concerned."""

    def alone(self, cause: C_contra, tried: X, marks: Collection[Any]) -> X | None:
        """Return the input without all features but the marks, if it still fails as the cause predicts."""


def attribute(predictions: Predictions[X, C], tried: X, causes: Iterable[C]) -> tuple[C | None, X]:
    """Return the first of the causes that explains a failing input, or None, and the input to go on with.

    Without a cause, it is another input if the failure also occurs without a mark of a known cause: then something else
    is beneath.
    """
    causes = list(causes)
    left, absent = list(causes), list[C]()
    while left and not predictions.over():
        cause = left.pop(0)
        marks = predictions.marks(cause, tried)
        if marks is None:
            continue
        passes, failing = True, None
        for variant in predictions.without(tried, marks):
            if predictions.fails(variant):
                failing = variant
                break
            passes = passes and predictions.passes(cause, variant, marks)
        if failing is not None:
            # Those that were tried before may explain it now.
            tried = failing
            absent.append(cause)
            left = [each for each in causes if each not in absent]
        elif passes and (alone := predictions.alone(cause, tried, marks)) is not None:
            return cause, alone
    return None, tried
