"""The recurrence of a flaky failure: its rate, interval, and conditions."""

import math
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from attnfuzz.harness.verdict.wording import count

_Z = 1.96
"""Number of standard deviations on either side of a 95% interval."""

SHOWN = 0.99
"""Probability that runs that should show a failure do so."""

MOST_RUNS = 20_000
"""Maximum number of runs to show a failure, however rare."""
MOST_SECONDS = 300
"""Time limit for such runs."""

SEEN_ONCE_RUNS = 200
"""Number of runs of a failure that was filed as seen once; no number would refute it."""

# Bounds on values in a finding's file, which may be damaged or hostile.
Runs = Annotated[int, Meta(ge=0, le=1 << 40)]
Load = Annotated[int, Meta(ge=1, le=64)]
Cases = Annotated[int, Meta(ge=0, le=10_000)]


class Rerun(StrEnum):
    """A way to rerun a case that did not fail again in a fresh worker."""

    ALONE = "repeated in one worker"
    HISTORY = "in a fresh worker, after the cases that its worker had run before"
    LOAD = "in several workers at the same time"
    GUARD = "repeated with the other edge of tensors guarded"
    LATE = "repeated on a device that begins late"


_CONDITIONS = {
    Rerun.ALONE: "Fails again",
    Rerun.HISTORY: "Fails after earlier cases",
    Rerun.LOAD: "Fails under load",
    Rerun.GUARD: "Fails with the other guard",
    Rerun.LATE: "Fails on a device that begins late",
}
"""The start of a sentence on a failure that came back in each run of a way."""


class Trial(msgspec.Struct, frozen=True):
    """The number of runs under one condition, and of failing ones."""

    way: Rerun
    runs: Runs
    failed: Runs = 0

    @property
    def words(self) -> str:
        """The trial in half a line."""
        return f"{self.failed:,} of {self.runs:,} runs failed, {self.way}"


class Recurrence(msgspec.Struct, frozen=True, kw_only=True):
    """A flaky failure: it `failed` in some of `runs`, made in the given `way`.

    `failed` is 0 for a failure that was seen once and never again. `load` is the number of workers that ran the case at
    the same time, and `history` the number of cases that a fresh worker ran before it. `tried` has all trials.
    """

    way: Rerun
    runs: Runs
    failed: Runs
    load: Load = 1
    history: Cases = 0
    tried: tuple[Trial, ...] = ()

    def __post_init__(self) -> None:
        """Reject impossible counts."""
        if self.failed > self.runs:
            raise ValueError(f"{self.failed} of {self.runs} runs can't have failed")

    @property
    def seen_once(self) -> bool:
        """Whether it never came back."""
        return self.failed == 0

    @property
    def depends_on_earlier_cases(self) -> bool:
        """Whether it came back in workers that had run other cases before."""
        return self.way is Rerun.HISTORY and self.failed > 0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% confidence interval of the rate."""
        return interval(self.failed, self.runs)

    @property
    def runs_to_show(self) -> int:
        """Number of runs that show it with probability `SHOWN` at the low end of the interval, up to `MOST_RUNS`."""
        return SEEN_ONCE_RUNS if self.seen_once else runs_to_show(self.interval[0])

    @property
    def words(self) -> str:
        """The rate and the conditions in a line or two."""
        if self.seen_once:
            return f"Seen once: it did not fail again. {self._all_tried}"
        low, high = self.interval
        before = ""
        if self.depends_on_earlier_cases:
            before = (
                f" Each run needs a fresh worker, which first runs {count(self.history, 'earlier case')}: state that "
                "is kept from call to call, such as a plan or a workspace, may be stale."
            )
        elif self.way is Rerun.LOAD:
            before = f" {self.load} workers ran it at the same time."
        if self.failed == self.runs:
            return f"{_CONDITIONS[self.way]}: {self.failed:,} of {self.runs:,} runs failed, {self.way}.{before}"
        return (
            f"Flaky: {self.failed:,} of {self.runs:,} runs failed ({percent(self.failed / self.runs)}; 95% "
            f"confidence interval {percent(low)} to {percent(high)}), {self.way}.{before}"
        )

    @property
    def _all_tried(self) -> str:
        tried = [trial.words for trial in self.tried if trial.runs]
        return f"{'; '.join(tried)}." if tried else "There was no time to run it again."


def interval(failed: int, runs: int) -> tuple[float, float]:
    """Return Wilson's 95% score interval for a rate."""
    if not runs:
        return 0.0, 1.0
    rate, weight = failed / runs, _Z * _Z / runs
    centre = (rate + weight / 2) / (1 + weight)
    reach = _Z * math.sqrt(rate * (1 - rate) / runs + weight / (4 * runs)) / (1 + weight)
    return (0.0 if not failed else max(0.0, centre - reach)), (1.0 if failed == runs else min(1.0, centre + reach))


def is_known(failed: int, runs: int) -> bool:
    """Return whether the rate is known to a factor of 2."""
    low, high = interval(failed, runs)
    return failed > 0 and 2 * low >= failed / runs >= high / 2


def runs_to_show(rate: float, shown: float = SHOWN) -> int:
    """Return the number of runs of which at least one fails with probability `shown`, at most `MOST_RUNS`."""
    if rate >= 1:
        return 1
    if rate <= 0:
        return MOST_RUNS
    return min(MOST_RUNS, math.ceil(math.log1p(-shown) / math.log1p(-rate)))


def percent(rate: float) -> str:
    """Return a rate in percent, with two significant digits."""
    return f"{100 * rate:.2g}%" if rate < 0.995 else "100%"
