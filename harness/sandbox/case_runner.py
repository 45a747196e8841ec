"""The protocols of what runs and judges cases."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, TypeVar

from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.reference.case import Case
from attnfuzz.reference.case_file import AnyCase

CaseT_contra = TypeVar("CaseT_contra", bound=AnyCase, contravariant=True)


class CaseRunner(Protocol[CaseT_contra]):
    """Runs and judges cases; `attnfuzz.harness.sandbox.check.Runner` is the implementation outside of tests."""

    def verdict(self, case: CaseT_contra) -> Verdict:
        """Run `case` in a process that may die, and judge it."""
        ...

    def renew(self) -> None:
        """Have the next case run by a worker that has run nothing."""
        ...


class RepeatingRunner(CaseRunner[Case], Protocol):
    """A runner that can bring about the conditions under which a case failed."""

    @property
    def history(self) -> tuple[Case, ...]:
        """The cases that the worker of the last case had run before it, in order."""
        ...

    def together(self, cases: Sequence[Case]) -> list[Verdict]:
        """Run cases at the same time, each in a worker of its own."""
        ...


class OneByOne(ABC):
    """A base of runners that keep no history, and that run cases one after the other."""

    @abstractmethod
    def verdict(self, case: Case) -> Verdict:
        """Run `case` and judge it."""

    @property
    def history(self) -> tuple[Case, ...]:
        """Nothing is on record."""
        return ()

    def together(self, cases: Sequence[Case]) -> list[Verdict]:
        """Run cases, none of them beside another."""
        return [self.verdict(case) for case in cases]
