"""The way from a suspected failure to a finding, in five stages, for whatever fails: a case, literal calls, a trace."""

from typing import Protocol, TypeVar

X = TypeVar("X")
C = TypeVar("C")
F_co = TypeVar("F_co", covariant=True)


class Stages(Protocol[X, C, F_co]):
    """The stages for failures of class X, which known causes of class C may explain. A finding has class F."""

    def confirm(self, suspected: X) -> X | None:
        """Return the failure if it comes back under fresh conditions, else None."""

    def attribute(self, failing: X) -> tuple[C | None, X]:
        """Return the known cause that explains a failure, if any, and the failure to go on with."""

    def reduce(self, failing: X, cause: C | None) -> X:
        """Return the failure with the smallest input that fails for the same cause."""

    def confirm_again(self, failing: X, smallest: X) -> X | None:
        """Return the smallest failure if it comes back, else the one that it was reduced from, or None."""

    def describe(self, failing: X, cause: C | None) -> F_co:
        """Return the finding: the features that the failure needs, its words, and its cause."""


def settle(stages: Stages[X, C, F_co], suspected: X) -> F_co | None:
    """Return the finding that a suspected failure leads to, or None if it does not come back."""
    failing = stages.confirm(suspected)
    return None if failing is None else settle_confirmed(stages, failing)


def settle_confirmed(stages: Stages[X, C, F_co], failing: X) -> F_co | None:
    """Return the finding that a confirmed failure leads to, or None if it does not always come back."""
    cause, failing = stages.attribute(failing)
    smallest = stages.reduce(failing, cause)
    again = stages.confirm_again(failing, smallest)
    return None if again is None else stages.describe(again, cause)
