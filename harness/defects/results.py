"""Results of measuring the judge's power: per defect, and as written by `attnfuzz defects run --json`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from attnfuzz.harness.defects.search import Kill, SearchOutcome
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.defects.defect import Defect

ENOUGH = 0.95
"""Share of the defects that have to be killed."""


@dataclass(frozen=True)
class DefectTally:
    """The outcomes of the searches for `defect`. It is killed if every seed kills it."""

    defect: Defect
    outcomes: tuple[SearchOutcome, ...]

    @property
    def kills(self) -> list[Kill]:
        """One per seed that kills it."""
        return [outcome.kill for outcome in self.outcomes if outcome.kill is not None]

    @property
    def killed(self) -> bool:
        """Whether every seed kills it."""
        return len(self.kills) == len(self.outcomes)

    @property
    def usual(self) -> tuple[str, str]:
        """The most frequent killer and kind of failure; empty if there is none."""
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
    """Return whether enough of the defects are killed."""
    return sum(score.killed for score in scores) >= ENOUGH * len(scores)


def _median_and_worst(values: Sequence[float]) -> tuple[float, float]:
    return median(values), max(values)


class DefectScore(msgspec.Struct, frozen=True, kw_only=True):
    """How each search ended, and how many of the defects every seed killed."""

    attnfuzz: str
    examples: int
    seeds: tuple[int, ...]
    without: tuple[Tier, ...]
    killed: int
    defects: int
    searches: tuple[SearchOutcome, ...]
