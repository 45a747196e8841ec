"""What a user asks of a campaign, and when it stops what."""

import math
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attnfuzz.harness.search.limits import MOST_SECONDS

if TYPE_CHECKING:
    # The command line declares its options with these bounds, before anything imports torch.
    from attnfuzz.reference.case import Guard

ALPHA = 1e-3
"""The false alarms that a campaign expects unless it is told otherwise: one in a thousand campaigns."""

MOST_OUTPUTS_PER_CASE = 16
"""Steps of a drawn case that have an output, and as many again where it is asked a second time: at most 8 of each."""

MOST_CASES_PER_SECOND = 500
"""What one job gets through, at most: ten times what is measured on drawn cases (docs/explanation/performance.md)."""

SLICES_PER_SHARE = 4
"""How often a backend has its turn, at least, while it uses up an even share of the time."""

LEAST_SECONDS_PER_SLICE = 1.0
"""In less, a slice hardly gets to draw anything."""

LEAST_ALPHA = 1e-12
"""Less is not told from nothing, once it is shared out over all outputs."""

MOST_JOBS = 256
"""More processes than any machine has cores to spare for; what they need of memory is checked apart (`prepare.py`)."""

MOST_EXAMPLES = 10**12

MOST_BACKENDS = 1000

MOST_SEED = (1 << 63) - 1

_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def spent_per_output(alpha: float, cases: float) -> float:
    """What each output of so many cases may spend of `alpha`, by the union bound."""
    return alpha / (max(cases, 1.0) * MOST_OUTPUTS_PER_CASE)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A campaign: `examples` for each backend or `seconds` in all, in `jobs` processes, with its home in `out`.

    `alpha` is the number of false alarms that is expected of it if all backends are correct, before confirmation.
    `leaning`: what is drawn leans to what was not reached. `database` is a folder or a redis:// URL for Hypothesis'
    examples; `ledger` the file of known findings; `ray` the cluster on which jobs run, None for processes here.
    `until_finding`: it also ends once a failure that the ledger does not know is filed, or one on file fails again.
    `begun` is when it was asked for, by the monotonic clock.
    """

    backends: tuple[str, ...]
    out: Path
    examples: int | None = None
    seconds: float | None = None
    seed: int = 0
    jobs: int = 1
    contract: str = "declared"
    guard: "Guard | None" = None
    alpha: float = ALPHA
    preset: str = "quick"
    leaning: bool = True
    database: str | None = None
    ledger: Path | None = None
    ray: str | None = None
    until_finding: bool = False
    begun: float = field(default_factory=time.monotonic, compare=False)

    @property
    def seconds_per_slice(self) -> float | None:
        """How long a slice may draw, and how long it may shrink, so that no backend takes the others' time.

        None where nothing but examples ends one: where they are what is counted, the same seed finds the same.
        """
        if self.seconds is None or len(self.backends) == 1:
            return None
        return max(LEAST_SECONDS_PER_SLICE, self.seconds * self.jobs / len(self.backends) / SLICES_PER_SHARE)

    @property
    def alpha_per_output(self) -> float:
        """What each output may spend of `alpha`, over all that the campaign can judge."""
        if self.examples is not None:
            cases = float(self.examples * len(self.backends))
        else:
            cases = (self.seconds or 0.0) * self.jobs * MOST_CASES_PER_SECOND
        return spent_per_output(self.alpha, cases)


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What a campaign's size and number of jobs are unless they are given."""

    examples: int | None = None
    seconds: float | None = None
    jobs: int = 1


PRESETS = {
    "quick": Preset(examples=1000),
    "nightly": Preset(seconds=2 * 3600, jobs=min(os.cpu_count() or 1, MOST_JOBS)),
    "deep": Preset(seconds=12 * 3600, jobs=min(os.cpu_count() or 1, MOST_JOBS)),
}


def parse_duration(text: str) -> float:
    """Seconds of a duration like 90s, 10m, 1h30m or plain seconds. ValueError says what to write instead."""
    if re.fullmatch(r"\d+", text):
        text += "s"
    if not re.fullmatch(r"(\d+[smhd])+", text):
        raise ValueError(f"{text!r} is no duration: write something like 90s, 10m or 1h30m")
    # As floats: Python refuses to read an integer of thousands of digits, and a float is then infinite.
    seconds = sum(float(number) * _SECONDS_PER_UNIT[unit] for number, unit in re.findall(r"(\d+)([smhd])", text))
    if seconds > MOST_SECONDS:
        raise ValueError(f"a duration must be at most {MOST_SECONDS / 86400:,.0f} days")
    if not seconds:
        raise ValueError("a duration must be longer than 0 seconds")
    return seconds


OVERRUN = 0.1
GRACE_SECONDS = 10.0
"""By how much the command may last longer than --time: this part of it, and these seconds."""

RESERVED_SECONDS = 6.0
"""Part of the grace that is left for what follows the search: to end jobs (3 s at most), and to write the reports (1 s,
and several on a busy machine)."""

SHRINKING_SHARE = 0.25
"""Part of what is left of the grace in which failures are still shrunk; after it they are confirmed and filed."""


@dataclass(frozen=True)
class Limits:
    """Seconds into the campaign from which on nothing is searched, nothing is shrunk, and no job is waited for."""

    searched: float = math.inf
    shrunk: float = math.inf
    ended: float = math.inf

    @classmethod
    def of(cls, seconds: float | None, *, spent: float = 0.0, late: float = 0.0) -> "Limits":
        """The limits of a campaign of `seconds`, or without any, that begins `late` seconds after its command did.

        A search has all of its time, but for what was `spent` before it was resumed: where preparing it took longer
        than the grace, as compiling does, that comes on top.
        """
        if seconds is None:
            return cls()
        grace = max(0.0, OVERRUN * seconds + GRACE_SECONDS - RESERVED_SECONDS - late)
        over = max(seconds, spent)
        return cls(seconds, over + SHRINKING_SHARE * grace, over + grace)
