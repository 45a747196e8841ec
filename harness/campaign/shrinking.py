"""The budget for shrinking: a share of the job time, so that a backend full of bugs doesn't starve the search."""

from attnfuzz.harness.campaign.events import (
    AlreadyFiled,
    CampaignResumed,
    Event,
    FindingChecked,
    FindingFiled,
    SuspectSeen,
    UnconfirmedKept,
)
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.search.messages import ShrinkBudget
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.any_case import AnyCase

SHARE = 0.25

GRANTED_SECONDS = 60.0
"""Seconds per job in addition to its share, so that a short campaign shrinks its first findings as far as a long one.
"""

LEAST_SECONDS = 1.0
"""Shorter budgets are not worth starting."""

FULL = ShrinkBudget()
NOTHING = ShrinkBudget(runs=0, seconds=0.0)


class ShrinkingTime:
    """A handler of events that adds up the time of settling suspects, and computes the next one's budget.

    A slice with many failures may overdraw. Until that is made up, later slices file failures unshrunk. No budget
    exceeds `most` seconds, if given.
    """

    def __init__(self, jobs: int, *, most: float | None = None) -> None:
        self._jobs = jobs
        self._most = FULL.seconds if most is None else min(FULL.seconds, most)
        self._spent = 0.0
        self._began: dict[tuple[Fingerprint, AnyCase], float] = {}

    def __call__(self, event: Event) -> None:
        """Learn from `event`."""
        match event:
            case SuspectSeen(left_over=True):
                # Waiting costs nothing.
                pass
            case SuspectSeen(fingerprint=fingerprint, case=case, at=at):
                self._settle([(fingerprint, case)], at)
                self._began[fingerprint, case] = at
            case UnconfirmedKept(fingerprint=fingerprint, case=case, at=at):
                self._settle([(fingerprint, case)], at)
            case FindingChecked(state=State.FIXED):
                pass
            case (
                FindingFiled(fingerprint=fingerprint, at=at)
                | AlreadyFiled(fingerprint=fingerprint, at=at)
                # A suspect that is on file by now is no longer reported.
                | FindingChecked(fingerprint=fingerprint, at=at)
            ):
                self._settle([key for key in self._began if key[0] == fingerprint], at)
            case CampaignResumed(at=at):
                self._settle(list(self._began), at)

    def budget(self, at: float) -> ShrinkBudget:
        """Return the budget of a slice that starts now, for shrinking a failure or measuring its recurrence."""
        under_way = sum(at - began for began in self._began.values())
        left = self._jobs * (GRANTED_SECONDS + SHARE * at) - self._spent - under_way
        seconds = min(self._most, left / self._jobs)
        return ShrinkBudget(runs=FULL.runs, seconds=seconds) if seconds >= LEAST_SECONDS else NOTHING

    def _settle(self, suspects: list[tuple[Fingerprint, AnyCase]], at: float) -> None:
        for suspect in suspects:
            self._spent += at - self._began.pop(suspect, at)
