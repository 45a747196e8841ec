"""When a campaign with an amount of time stops what: so that the command is over soon after it."""

import math
from dataclasses import dataclass

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
