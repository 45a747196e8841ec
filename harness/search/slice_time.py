"""The time that a slice has for its search, and for settling its failures."""

import time

from msgspec.structs import replace

from attnfuzz.harness.search.messages import ShrinkBudget, Slice


class SliceTime:
    """The seconds of a slice since it was handed out, and the budgets that its limits leave."""

    def __init__(self, task: Slice) -> None:
        self._task = task
        self._started = time.monotonic()
        self._handed_at = self._started if task.handed_at is None else task.handed_at

    @property
    def seconds(self) -> float:
        """The seconds since the slice began."""
        return time.monotonic() - self._started

    @property
    def is_up(self) -> bool:
        """Whether the time for the search is over."""
        return self._task.seconds is not None and self._counted >= self._task.seconds

    @property
    def budget(self) -> ShrinkBudget:
        """The budget for settling the next failure."""
        return self.within(self._task.shrink)

    def within(self, budget: ShrinkBudget) -> ShrinkBudget:
        """Return a budget, limited to the remaining time for shrinking."""
        limit = self._task.shrink_seconds
        return budget if limit is None else replace(budget, seconds=min(budget.seconds, limit - self._counted))

    @property
    def _counted(self) -> float:
        return time.monotonic() - self._handed_at
