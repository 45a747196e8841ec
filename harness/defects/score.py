"""What the searches for one defect say together: one for each seed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from attnfuzz.harness.defects.search import Kill, SearchOutcome
from attnfuzz.kernels.defects.defect import Defect

ENOUGH = 0.95
"""The share of the defects that has to be killed."""


@dataclass(frozen=True)
class DefectTally:
    """The outcomes of the searches for `defect`. It is killed if every seed kills it."""

    defect: Defect
    outcomes: tuple[SearchOutcome, ...]

    @property
    def kills(self) -> list[Kill]:
        """One for each seed that kills it."""
        return [outcome.kill for outcome in self.outcomes if outcome.kill is not None]

    @property
    def killed(self) -> bool:
        """Whether every seed kills it."""
        return len(self.kills) == len(self.outcomes)

    @property
    def usual(self) -> tuple[str, str]:
        """What kills it most often, and as what kind of failure; empty if nothing does."""
        seen = Counter((kill.by, kill.kind.value) for kill in self.kills)
        return seen.most_common(1)[0][0] if seen else ("", "")

    @property
    def examples(self) -> tuple[float, float]:
        """Examples that a search took: the median, and the most."""
        return _median_and_worst([outcome.examples for outcome in self.outcomes])

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds that a search took: the median, and the most."""
        return _median_and_worst([outcome.seconds for outcome in self.outcomes])

    @property
    def unconfirmed(self) -> int:
        """Failures that did not come back in a fresh worker."""
        return sum(outcome.unconfirmed for outcome in self.outcomes)


def enough(scores: Sequence[DefectTally]) -> bool:
    """Whether as many of the defects are killed as have to be."""
    return sum(score.killed for score in scores) >= ENOUGH * len(scores)


def _median_and_worst(values: Sequence[float]) -> tuple[float, float]:
    return median(values), max(values)
