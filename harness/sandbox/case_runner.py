"""The one protocol of what runs and judges cases."""

from typing import Protocol, TypeVar

from attnfuzz.harness.verdict.failures import Verdict
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
