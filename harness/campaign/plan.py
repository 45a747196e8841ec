"""A campaign's plan: the user's settings, and the time limits that follow."""

import math
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from attnfuzz.harness.search.drawn_part import DrawnPart
from attnfuzz.harness.search.limits import MOST_SECONDS

if TYPE_CHECKING:
    # The command line declares its options with these bounds, before anything imports torch.
    from attnfuzz.harness.verdict.tiers import Tier
    from attnfuzz.reference.case import Guard

ALPHA = 1e-3
"""Default number of expected false positives per campaign: one in a thousand campaigns."""

MOST_OUTPUTS_PER_CASE = 16
"""Number of outputs of a drawn case: at most 8 steps, and as many in a related run."""

MOST_CASES_PER_SECOND = 500
"""An upper bound per job: ten times the rate measured on drawn cases (docs/explanation/performance.md)."""

SLICES_PER_SHARE = 4
"""Minimum number of turns of a backend per even share of the time."""

LEAST_SECONDS_PER_SLICE = 1.0
"""In less time, a slice hardly draws anything."""

LEAST_ALPHA = 1e-12
"""Anything less vanishes when shared among all outputs."""

MOST_JOBS = 256
"""More than any machine has cores for. Memory is checked separately (`prepare.py`)."""

MOST_EXAMPLES = 10**12

MOST_BACKENDS = 1000

MOST_SEED = (1 << 63) - 1

_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def spent_per_output(alpha: float, cases: float) -> float:
    """Return the share of `alpha` of each output of this many cases, by the union bound."""
    return alpha / (max(cases, 1.0) * MOST_OUTPUTS_PER_CASE)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A campaign: `examples` for each backend or `seconds` in total, in `jobs` processes, with its home in `out`.

    `alpha` is the expected number of false positives if all backends are correct, before confirmation. `ledger` is the
    file of known findings, `ray` the cluster for jobs, None for local processes. `until_finding`: it also ends once a
    failure that is not in the ledger is filed, or one on file fails again. `promised`: only calls that APIs mention are
    drawn or run again. So are only `modes` and `dtypes` of queries, if some are named, and cases with all features of
    `only` and with none of `never`. The tiers in `without` are skipped. `trial` makes it one search of `examples` per
    backend, up to its first finding, which is shrunk for this many seconds; drawing is not biased, no case is kept or
    run again, and no script is created. `sanitize` runs a few cases under compute-sanitizer instead of a search
    (`sanitizing.py`). `begun` is the time of the request, on the monotonic clock.
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
    ledger: Path | None = None
    ray: str | None = None
    until_finding: bool = False
    promised: bool = False
    modes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    without: "tuple[Tier, ...]" = ()
    trial: float | None = None
    sanitize: bool = False
    begun: float = field(default_factory=time.monotonic, compare=False)

    @property
    def seconds_per_slice(self) -> float | None:
        """Time limit for a slice's drawing and for its shrinking, so that no backend takes the others' time.

        None if only examples end a slice: then the same seed gives the same findings.
        """
        if self.seconds is None or len(self.backends) == 1:
            return None
        return max(LEAST_SECONDS_PER_SLICE, self.seconds * self.jobs / len(self.backends) / SLICES_PER_SHARE)

    @property
    def part(self) -> DrawnPart:
        """The part of the backends' cases that is drawn."""
        return DrawnPart(promised=self.promised, modes=self.modes, dtypes=self.dtypes, only=self.only, never=self.never)

    @property
    def alpha_per_output(self) -> float:
        """Each output's share of `alpha`, over all outputs that the campaign can judge."""
        if self.examples is not None:
            cases = float(self.examples * len(self.backends))
        else:
            cases = (self.seconds or 0.0) * self.jobs * MOST_CASES_PER_SECOND
        return spent_per_output(self.alpha, cases)


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Defaults for a campaign's size and number of jobs."""

    examples: int | None = None
    seconds: float | None = None
    jobs: int = 1


PRESETS = {
    "quick": Preset(examples=1000),
    "nightly": Preset(seconds=2 * 3600, jobs=min(os.cpu_count() or 1, MOST_JOBS)),
    "deep": Preset(seconds=12 * 3600, jobs=min(os.cpu_count() or 1, MOST_JOBS)),
}


def parse_duration(text: str) -> float:
    """Return the seconds of a duration like 90s, 10m, 1h30m or plain seconds. Raises ValueError with advice."""
    if re.fullmatch(r"\d+", text):
        text += "s"
    if not re.fullmatch(r"(\d+[smhd])+", text):
        raise ValueError(f"{text!r} is not a duration: write it like 90s, 10m or 1h30m")
    # As floats: Python refuses integers of thousands of digits, and a float becomes infinite.
    seconds = sum(float(number) * _SECONDS_PER_UNIT[unit] for number, unit in re.findall(r"(\d+)([smhd])", text))
    if seconds > MOST_SECONDS:
        raise ValueError(f"a duration must be at most {MOST_SECONDS / 86400:,.0f} days")
    if not seconds:
        raise ValueError("a duration must be longer than 0 seconds")
    return seconds


OVERRUN = 0.1
GRACE_SECONDS = 10.0
"""Overrun of the command beyond --time: this share of it, plus these seconds."""

RESERVED_SECONDS = 6.0
"""Part of the grace reserved for the end of the search: stopping jobs (at most 3 s, and 2 s to kill those that do not
leave), and writing reports (1 s, and several on a busy machine).
"""

SHRINKING_SHARE = 0.25
"""Share of the remaining grace for shrinking. After it, failures are only confirmed and filed."""


@dataclass(frozen=True)
class Limits:
    """Seconds into the campaign after which searching, shrinking, and waiting for jobs end."""

    searched: float = math.inf
    shrunk: float = math.inf
    ended: float = math.inf

    @classmethod
    def of(cls, seconds: float | None, *, spent: float = 0.0, late: float = 0.0) -> "Limits":
        """Return the limits of a campaign of `seconds`, or unlimited, that begins `late` seconds after its command.

        A search has all of its time, minus time `spent` before it was resumed. If preparation took longer than the
        grace, as compiling may, that is added.
        """
        if seconds is None:
            return cls()
        grace = max(0.0, OVERRUN * seconds + GRACE_SECONDS - RESERVED_SECONDS - late)
        over = max(seconds, spent)
        return cls(seconds, over + SHRINKING_SHARE * grace, over + grace)
