"""In which release a failure began, and in which it ended, for a table; `bisect.summary` says it in a sentence."""

from collections.abc import Mapping
from dataclasses import dataclass

from attnfuzz.harness.bisect.outcome import Ending, Outcome

STILL_THERE = "still there"
NEVER = "-"


@dataclass(frozen=True)
class Course:
    """The ends of a failure: "-" both, if no release fails.

    `began` is the first release that fails, after "by" if it is the oldest that could be judged. `ended` is the first
    that passes after all that fail, or "still there".
    """

    began: str
    ended: str

    @property
    def still_there(self) -> bool:
        """Whether the newest release that could be judged fails."""
        return self.ended == STILL_THERE


def course_of(outcomes: Mapping[str, Outcome]) -> Course:
    """The course of a failure by its outcomes, which are in the order of the releases."""
    judged = [(release, outcome.ending) for release, outcome in outcomes.items() if outcome.judged]
    failing = [place for place, (_, ending) in enumerate(judged) if ending is Ending.FAILS]
    if not failing:
        return Course(NEVER, NEVER)
    first, last = failing[0], failing[-1]
    return Course(
        began=judged[first][0] if first else f"by {judged[0][0]}",
        ended=judged[last + 1][0] if last + 1 < len(judged) else STILL_THERE,
    )
