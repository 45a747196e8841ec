"""Show a failure again that comes and goes, under the conditions that it was filed with."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from attnfuzz.harness.sandbox.case_runner import RepeatingRunner
from attnfuzz.harness.sandbox.tries import Tries, seeds_of
from attnfuzz.harness.verdict.failures import Observation, Verdict
from attnfuzz.harness.verdict.recurrence import Recurrence
from attnfuzz.reference.case import Case


class ShownAgain(NamedTuple):
    """How often the case failed in so many `runs` of those `wanted`, and the first verdict that did, if one did."""

    runs: int
    wanted: int
    failed: int
    verdict: Verdict | None
    unsupported: str | None = None

    @property
    def conclusive(self) -> bool:
        """Whether it failed, or would have."""
        return self.failed > 0 or self.runs >= self.wanted


def show_again(
    runner: RepeatingRunner,
    case: Case,
    observation: Observation,
    recurrence: Recurrence,
    history: Sequence[Case] = (),
    *,
    seconds: float,
    times: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> ShownAgain:
    """Run a case until it fails like `observation`, as often as its rate asks for, but no longer than `seconds`.

    With `times`, it is run that often whether it fails or not.
    """
    wanted = recurrence.runs_to_show if times is None else times
    tries = Tries(
        runner, recurrence.way, case, observation, history=history, load=recurrence.load, seeds=seeds_of(observation, 0)
    )
    until = clock() + seconds
    tries.begin()
    while tries.runs < wanted and tries.unsupported is None and not (tries.failed and times is None):
        tries.run()
        if clock() >= until and times is None:
            break
    verdict = None if tries.shown is None else tries.shown[2]
    return ShownAgain(tries.runs, wanted, tries.failed, verdict, tries.unsupported)
