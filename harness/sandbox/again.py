"""Showing a flaky failure again, under the conditions in its record."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from attnfuzz.harness.sandbox.case_runner import RepeatingRunner
from attnfuzz.harness.sandbox.tries import Tries, seeds_of
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.reference.any_case import AnyCase


class ShownAgain(NamedTuple):
    """The number of failures in `runs` (`wanted` runs should show one), and the first failing verdict, if any."""

    runs: int
    wanted: int
    failed: int
    verdict: Verdict | None
    unsupported: str | None = None

    @property
    def conclusive(self) -> bool:
        """Whether it failed, or should have by now."""
        return self.failed > 0 or self.runs >= self.wanted


def show_again(
    runner: RepeatingRunner,
    case: AnyCase,
    observation: Observation,
    recurrence: Recurrence,
    history: Sequence[AnyCase] = (),
    *,
    seconds: float,
    times: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ShownAgain:
    """Run a case until it fails like `observation`, as many times as its rate requires, for at most `seconds`.

    With `times`, it is always run that number of times.
    """
    wanted = recurrence.runs_to_show
    most = wanted if times is None else times
    tries = Tries(
        runner, recurrence.way, case, observation, history=history, load=recurrence.load, seeds=seeds_of(observation, 0)
    )
    until = clock() + seconds
    tries.begin()
    while tries.runs < most and tries.unsupported is None and not (tries.failed and times is None):
        tries.run()
        if clock() >= until and times is None:
            break
    verdict = None if tries.shown is None else tries.shown[2]
    return ShownAgain(tries.runs, wanted, tries.failed, verdict, tries.unsupported)
