"""Protocols of case runners."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.reference.any_case import AnyCase

CaseT_contra = TypeVar("CaseT_contra", bound=AnyCase, contravariant=True)


class CaseRunner(Protocol[CaseT_contra]):
    """Runs and judges cases; `attnfuzz.harness.sandbox.check.Runner` is the implementation outside of tests."""

    def verdict(self, case: CaseT_contra) -> Verdict:
        """Run `case` in a process that may die, and judge it."""
        ...

    def renew(self) -> None:
        """Use a fresh worker for the next case."""
        ...


class RepeatingRunner(CaseRunner[Any], Protocol):
    """A runner that can recreate the conditions under which a case failed."""

    @property
    def history(self) -> tuple[AnyCase, ...]:
        """The cases that the worker of the last case had run before it, in order."""
        ...

    def together(self, cases: Sequence[Any]) -> list[Verdict]:
        """Run cases at the same time, each in a separate worker."""
        ...


class OneByOne(ABC):
    """Base class of runners without a history that run cases one after the other."""

    @abstractmethod
    def verdict(self, case: Any) -> Verdict:
        """Run `case` and judge it."""

    @property
    def history(self) -> tuple[AnyCase, ...]:
        """Empty: no history is kept."""
        return ()

    def together(self, cases: Sequence[Any]) -> list[Verdict]:
        """Run cases one after the other."""
        return [self.verdict(case) for case in cases]
