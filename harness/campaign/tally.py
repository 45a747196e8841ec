"""Counts what a judge runs, and tells it now and then, so that a long shrink shows as progress too."""

import time
from collections.abc import Callable

from attnfuzz.harness.campaign.judge import Judge
from attnfuzz.harness.campaign.messages import Tally
from attnfuzz.harness.failures import Kind, Observation, Verdict
from attnfuzz.reference.case import Case

DEATHS = frozenset({Kind.ILLEGAL_ACCESS, Kind.MISALIGNED, Kind.HANG, Kind.WORKER_DIED})
SECONDS_PER_TALLY = 0.25


class TalliedJudge:
    """A judge that counts the cases that `judge` runs, and the workers that died of them.

    `shrinking` is for the caller to set; each tally says what it was.
    """

    def __init__(self, judge: Judge, tell: Callable[[Tally], None]) -> None:
        self._judge = judge
        self._tell = tell
        self.cases = 0
        self.deaths = 0
        self.shrinking = False
        self._told = (0, 0, time.monotonic())

    def verdict(self, case: Case) -> Verdict:
        """Run `case`."""
        verdict = self._judge.verdict(case)
        self.cases += 1
        self.deaths += any(observation.kind in DEATHS for observation in verdict.observations)
        if time.monotonic() - self._told[2] > SECONDS_PER_TALLY:
            self.flush()
        return verdict

    def confirm(self, case: Case, observation: Observation) -> bool:
        """Run `case` again in a fresh worker; counted as one more."""
        confirmed = self._judge.confirm(case, observation)
        self.cases += 1
        self.deaths += confirmed and observation.kind in DEATHS
        return confirmed

    def flush(self) -> None:
        """Tell what has not been told."""
        cases, deaths, _ = self._told
        if self.cases > cases:
            self._tell(Tally(cases=self.cases - cases, deaths=self.deaths - deaths, shrinking=self.shrinking))
        self._told = (self.cases, self.deaths, time.monotonic())
