"""Words and numbers shared by several outputs."""

import shlex
import time
from typing import TYPE_CHECKING, Protocol

from attnfuzz.harness.verdict.printable import in_a_line
from attnfuzz.reference.any_case import AnyCase

if TYPE_CHECKING:
    # Commands that judge no case use these words without torch.
    from attnfuzz.harness.verdict.failures import Observation


class CaseThatFailed(Protocol):
    """An event or a record of a failure: how `case` failed."""

    @property
    def case(self) -> "AnyCase":
        """The case."""

    @property
    def observation(self) -> "Observation":
        """Its failure."""


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Format `number` with its noun: 1 case, 1,200 cases."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def clock(seconds: float) -> str:
    """Format a time in readable form: 42 s, 3:05, 1:10:00."""
    whole = int(seconds)
    if whole < 100:
        return f"{whole} s"
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def date(seconds: float) -> str:
    """Format a time since the epoch in readable form: 2026-05-01 04:30 UTC."""
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        # A log is foreign data: its numbers may exceed the calendar.
        return "invalid time"


def left_unjudged(rows: int) -> str:
    """Describe (token, head) rows without a right answer."""
    return f"only accesses were checked of {count(rows, 'row')}: their inputs are not finite, so no output is correct"


def headline(backend: str, observation: "Observation") -> str:
    """Describe a failure in half a line, safe for any names."""
    place = f" at {observation.place}" if observation.place else ""
    mode = f", {observation.mode}" if observation.mode else ""
    return in_a_line(f"{observation.kind}{place} in {backend}{mode}")


def replay_line(path: str) -> str:
    """Return the command line that runs the finding in the folder `path` again."""
    return in_a_line(f"attnfuzz replay {shlex.quote(path)}")
