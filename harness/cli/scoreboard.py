"""Where a campaign stands, counted from its events; what the terminal shows is drawn from it."""

import time
from collections import Counter
from dataclasses import dataclass, field

from attnfuzz.harness.campaign.events import (
    CampaignStarted,
    Event,
    FindingFiled,
    GapSeen,
    JobFailed,
    Progress,
    SliceFinished,
    UnconfirmedKept,
)


@dataclass
class Score:
    """What one backend has been through."""

    cases: int = 0
    deaths: int = 0
    findings: int = 0
    shrinking: bool = False
    unsupported: Counter[str] = field(default_factory=Counter)


class Scoreboard:
    """A handler of events that keeps the score of each backend, and everything that was found."""

    def __init__(self) -> None:
        self.scores: dict[str, Score] = {}
        self.findings: list[FindingFiled] = []
        self.unconfirmed: list[UnconfirmedKept] = []
        self.gaps: list[GapSeen] = []
        self.failure: JobFailed | None = None
        self.seed = 0
        self._started = time.monotonic()

    def __call__(self, event: Event) -> None:
        """Count `event`."""
        match event:
            case CampaignStarted():
                self.scores = {backend: Score() for backend in event.backends}
                self.seed = event.seed
                self._started = time.monotonic()
            case Progress():
                score = self.scores[event.backend]
                score.cases += event.cases
                score.deaths += event.deaths
                score.shrinking = event.shrinking
            case SliceFinished():
                self.scores[event.backend].unsupported.update(event.unsupported)
            case FindingFiled():
                self.findings.append(event)
                self.scores[event.case.backend].findings += 1
            case UnconfirmedKept():
                self.unconfirmed.append(event)
            case GapSeen():
                self.gaps.append(event)
            case JobFailed():
                self.failure = event

    @property
    def elapsed(self) -> float:
        """Seconds since the campaign started."""
        return time.monotonic() - self._started

    @property
    def cases(self) -> int:
        """Cases judged on all backends."""
        return sum(score.cases for score in self.scores.values())

    def rate(self, cases: int) -> float:
        """Cases per second of the campaign."""
        return cases / max(self.elapsed, 1e-3)
