"""What the search needs to know of the harness: something that judges a case."""

from typing import Protocol

from attnfuzz.harness.failures import Observation, Verdict
from attnfuzz.reference.case import Case


class Judge(Protocol):
    """Runs and judges cases; `attnfuzz.harness.check.Runner` is the real one."""

    def verdict(self, case: Case) -> Verdict:
        """Run `case` where it may die, and say what failed."""
        ...

    def confirm(self, case: Case, observation: Observation) -> bool:
        """Whether `case` fails like `observation` again, in a fresh worker."""
        ...
