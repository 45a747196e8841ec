"""What became of one version."""

from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """How a script or a case ended with a version, or why it was not run.

    What fails otherwise than it was known to says nothing about its fault, which may be hidden.
    """

    PASSES = "passes"
    FAILS = "fails"
    FAILS_OTHERWISE = "fails otherwise"
    CANNOT_RUN = "can't run"
    CANNOT_BE_HAD = "can't be had"


@dataclass(frozen=True)
class Outcome:
    """`line` is what was seen, or the reason why it could not be run or had; empty if it passes."""

    ending: Ending
    line: str = ""

    @property
    def judged(self) -> bool:
        """Whether it says anything about the fault."""
        return self.ending in {Ending.PASSES, Ending.FAILS}
