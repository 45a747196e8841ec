"""The budget of one failure, in runs and seconds, and the rest of it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from attnfuzz.harness.search.messages import ShrinkBudget

NEEDS_SHARE = 0.2
"""Share of the budget for finding the features that the smallest case needs."""

_RUNS_TO_END = 2
"""Number of the slowest runs for which there must be time: one more, and one that confirms its case."""


class Spending:
    """A `budget` that runs are `counted` against. `slowest` is the time of the slowest run so far."""

    def __init__(self, budget: ShrinkBudget, slowest: float) -> None:
        self._slowest = slowest
        self.limit(budget)

    def limit(self, budget: ShrinkBudget) -> None:
        """Set the budget from now on."""
        self._budget = budget
        self._runs_left = budget.runs
        self._deadline = time.monotonic() + budget.seconds

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count a run, and its time if it is the slowest."""
        self._runs_left -= 1
        started = time.monotonic()
        yield
        self._slowest = max(self._slowest, time.monotonic() - started)

    @property
    def left(self) -> float:
        """The remaining share of the budget, of runs or seconds, whichever is less; 0 if it is spent.

        There must be time for the slowest run, and to confirm its case: a hang takes seconds.
        """
        seconds = self._deadline - time.monotonic() - _RUNS_TO_END * self._slowest
        if self._runs_left <= 0 or seconds <= 0:
            return 0.0
        return min(self._runs_left / self._budget.runs, seconds / self._budget.seconds)

    @property
    def spent(self) -> bool:
        """Whether the budget is spent."""
        return not self.left

    @property
    def reduced(self) -> bool:
        """Whether the shrinking part of the budget is spent."""
        return self.left <= NEEDS_SHARE
