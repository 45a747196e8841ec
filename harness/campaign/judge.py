"""What the search needs to know of the harness: something that judges a case."""

from typing import Protocol

from attnfuzz.harness.failures import Verdict
from attnfuzz.reference.case import Case


class Judge(Protocol):
    """Runs and judges cases; `attnfuzz.harness.check.Runner` is the real one."""

    def verdict(self, case: Case) -> Verdict:
        """Run `case` where it may die, and say what failed."""
        ...

    def renew(self) -> None:
        """Have the next case run by a worker that has run nothing."""
        ...
