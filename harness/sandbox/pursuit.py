"""Rerunning a flaky failure under several conditions, until its rate is known or a budget is spent."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from attnfuzz.harness.sandbox.case_runner import RepeatingRunner
from attnfuzz.harness.sandbox.tries import LOAD, OWN_SEED, Tries
from attnfuzz.harness.verdict.failures import DEATHS, Kind, Observation, Verdict
from attnfuzz.harness.verdict.recurrence import Recurrence, Rerun, Trial, is_known, runs_to_show
from attnfuzz.harness.workers.postmortem import KILLED
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case, Guard, Pace

STEADY_RUNS = 4
"""Number of runs of a failure that came back, all of which must fail for it to count as steady."""

_FIRST_RUNS = 32
"""Number of runs of each way in the first round. Each further round has twice as many."""

_FIRST_HISTORIES = 2
"""Number of runs after a history in the first round. They are fewer because the cases of a history take time too."""

_CUT_SHARE = 0.6
"""Share of the remaining time for cutting a history; the rest is for its rate."""

_CONVINCED = 0.95
"""Probability that a sufficient history shows the failure, at the rate known when cutting."""


class Effort(NamedTuple):
    """The budget of a pursuit: runs of the case, and seconds."""

    runs: int
    seconds: float


@dataclass(frozen=True)
class Pursued:
    """The result of a pursuit: how `case` fails, after `history`, and how often."""

    case: AnyCase
    observation: Observation
    verdict: Verdict
    history: tuple[AnyCase, ...]
    recurrence: Recurrence

    @property
    def is_finding(self) -> bool:
        """Whether to file it: it came back, or it is a death, which no correct kernel causes.

        A worker that was killed from outside may have been too large for its machine.
        """
        death = self.observation.kind in DEATHS and self.observation.place != KILLED
        return death or not self.recurrence.seen_once


class Pursuit:
    """Reruns of `case` to show `observation` again, also after the cases in `history`.

    `late`: its device can be made to begin late, for which a case of attention has a field; `came_back`: it failed in a
    fresh worker before. `clock` returns seconds.
    """

    def __init__(
        self,
        runner: RepeatingRunner,
        case: AnyCase,
        observation: Observation,
        history: Sequence[AnyCase],
        budget: Effort,
        *,
        late: bool = False,
        came_back: bool = False,
        load: int = LOAD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner, self._case, self._observation, self._history = runner, case, observation, tuple(history)
        self._clock, self._runs_left, self._came_back = clock, budget.runs, int(came_back)
        self._began = clock()
        self._until = self._began + budget.seconds
        other = Guard.LEFT if case.guard is Guard.RIGHT else Guard.RIGHT
        self._ways = [
            Tries(runner, Rerun.ALONE, case, observation),
            Tries(runner, Rerun.HISTORY, case, observation, history=history),
            Tries(runner, Rerun.LOAD, case, observation, load=load),
            Tries(runner, Rerun.GUARD, case.having(guard=other), observation),
        ]
        if late and isinstance(case, Case) and not case.late:
            self._ways.append(Tries(runner, Rerun.LATE, case.having(pace=Pace.LATE), observation))

    def is_steady(self) -> bool:
        """Return whether the case, which came back, fails in each of a few more runs. A hang counts as steady.

        More runs of a hang would take too long. The case is run with its own values, which are failing ones if only
        some values fail, and in the worker where it came back: another worker takes seconds to start on a GPU.
        """
        if self._observation.kind is Kind.HANG or self._spent:
            return True
        tries = Tries(self._runner, Rerun.ALONE, self._case, self._observation, seeds=OWN_SEED)
        for _ in range(STEADY_RUNS):
            tries.run()
            self._runs_left -= 1
            if tries.failed < tries.runs:
                return False
        return True

    def outcome(self) -> Pursued:
        """Run the case in all ways in turn, until it fails in one; then measure the rate there."""
        found = self._first_to_fail()
        if found is None:
            return self._never()
        if found.way is Rerun.HISTORY and found.history:
            found = self._cut(found)
        while not is_known(found.failed, found.runs) and not self._spent:
            self._run(found)
        assert found.shown is not None
        case, observation, verdict = found.shown
        return Pursued(case, observation, verdict, found.history, found.recurrence(self._tried(found)))

    def _never(self) -> Pursued:
        verdict = Verdict(observations=(self._observation,))
        runs = sum(tries.runs for tries in self._ways)
        recurrence = Recurrence(
            way=Rerun.ALONE, runs=runs + self._came_back, failed=self._came_back, tried=self._tried()
        )
        return Pursued(self._case, self._observation, verdict, (), recurrence)

    def _tried(self, *more: Tries) -> tuple[Trial, ...]:
        return tuple(tries.trial for tries in dict.fromkeys((*self._ways, *more)) if tries.runs)

    def _first_to_fail(self) -> Tries | None:
        share = (self._until - self._clock()) / (2 * len(self._ways))
        doubled = 1
        while not self._spent:
            ran = False
            for tries in self._ways:
                if tries.unsupported is not None or self._spent:
                    continue
                ran = True
                runs = doubled * (_FIRST_HISTORIES if tries.history else _FIRST_RUNS)
                if self._shows(tries, runs, self._clock() + doubled * share):
                    return tries
            if not ran:
                return None
            doubled *= 2
        return None

    def _shows(self, tries: Tries, runs: int, until: float) -> bool:
        """Return whether one of `runs` runs fails, or of as many as there is time for."""
        tries.begin()
        before, failed = tries.runs, tries.failed
        while tries.runs < before + runs and tries.unsupported is None and not self._spent:
            self._run(tries)
            if tries.failed > failed:
                return True
            if self._clock() > until:
                break
        return False

    def _run(self, tries: Tries) -> None:
        self._runs_left -= tries.load
        tries.run()

    @property
    def _spent(self) -> bool:
        return self._runs_left <= 0 or self._clock() >= self._until

    def _cut(self, found: Tries) -> Tries:
        """Drop unneeded cases from the history, in parts that halve each round."""
        until = self._clock() + _CUT_SHARE * (self._until - self._clock())
        runs = runs_to_show(found.failed / found.runs, _CONVINCED)
        best, history = found, found.history

        def suffices(cases: tuple[AnyCase, ...]) -> bool:
            nonlocal best
            tries = Tries(self._runner, Rerun.HISTORY, self._case, self._observation, history=cases)
            if not self._shows(tries, runs, until):
                return False
            best = tries
            return True

        if suffices(()):
            return best
        part = len(history) // 2
        while part:
            first = 0
            while first < len(history) and not self._spent and self._clock() < until:
                fewer = history[:first] + history[first + part :]
                if fewer and suffices(fewer):
                    history = fewer
                else:
                    first += part
            part //= 2
        return best
