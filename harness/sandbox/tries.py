"""Counting how often a case's failure comes back under one condition."""

import os
from collections.abc import Sequence
from itertools import cycle, islice

from attnfuzz.harness.sandbox.case_runner import RepeatingRunner
from attnfuzz.harness.sandbox.confirm import alike, by_chance
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.verdict.recurrence import Recurrence, Rerun, Trial
from attnfuzz.reference.any_case import AnyCase

MOST_LOAD = 8

LOAD = max(2, min(len(os.sched_getaffinity(0)), MOST_LOAD))
"""Number of workers that run a case at the same time: one per core, within bounds."""

FRESH_SEEDS = 64
"""Number of value seeds used in turn for failures that chance can produce."""

OWN_SEED = (0,)
"""The offset of a case's own seed."""


def seeds_of(observation: Observation, first: int) -> Sequence[int]:
    """Return offsets of seeds for runs in turn, from `first` on. An exact failure is run with its own seed.

    A failure that chance can produce would always come back with its old seed, like a false positive.
    """
    return range(first, first + FRESH_SEEDS) if by_chance(observation) else OWN_SEED


class Tries:
    """Runs of `case` in one `way`, and how many of them failed like `observation`.

    Each runs in the worker of the previous one, except for Rerun.HISTORY: there each starts a worker, which runs
    `history` first. Value seeds take turns, by default fresh ones (`seeds_of`). `shown` is the first failing case, with
    its observation and verdict.
    """

    def __init__(
        self,
        runner: RepeatingRunner,
        way: Rerun,
        case: AnyCase,
        observation: Observation,
        *,
        history: Sequence[AnyCase] = (),
        load: int = LOAD,
        seeds: Sequence[int] | None = None,
    ) -> None:
        self.way, self.case, self.observation = way, case, observation
        self.history = tuple(history) if way is Rerun.HISTORY else ()
        self.load = load if way is Rerun.LOAD else 1
        self.runs = self.failed = 0
        self.unsupported: str | None = None
        self.shown: tuple[AnyCase, Observation, Verdict] | None = None
        self._runner = runner
        offsets = seeds_of(observation, 1) if seeds is None else seeds
        self._cases = cycle([case.reseeded(offset) for offset in offsets])

    def begin(self) -> None:
        """Use a fresh worker for the next run."""
        self._runner.renew()

    def run(self) -> None:
        """Run the case once, or once in each of several workers."""
        cases = list(islice(self._cases, self.load))
        for case, verdict in zip(cases, self._verdicts(cases), strict=True):
            if verdict.unsupported is not None:
                self.unsupported = verdict.unsupported
                return
            self.runs += 1
            found = next((each for each in verdict.observations if alike(each, self.observation)), None)
            if found is not None:
                self.failed += 1
                self.shown = self.shown or (case, found, verdict)

    def _verdicts(self, cases: list[AnyCase]) -> list[Verdict]:
        if self.way is Rerun.LOAD:
            return self._runner.together(cases)
        if self.way is Rerun.HISTORY:
            self._runner.renew()
            for earlier in self.history:
                self._runner.verdict(earlier)
        return [self._runner.verdict(case) for case in cases]

    @property
    def trial(self) -> Trial:
        """The numbers of runs and failures."""
        return Trial(self.way, self.runs, self.failed)

    def recurrence(self, tried: tuple[Trial, ...] = ()) -> Recurrence:
        """Return the observed rate and its conditions."""
        return Recurrence(
            way=self.way,
            runs=self.runs,
            failed=self.failed,
            load=self.load,
            history=len(self.history),
            tried=tried,
        )
