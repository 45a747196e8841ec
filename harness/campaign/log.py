"""The event log: one JSON object per line, append-only, and readable even if its end is torn."""

from pathlib import Path
from typing import Literal

import msgspec

from attnfuzz.harness.campaign.events import (
    LOG_VERSION,
    AnyEvent,
    CampaignFinished,
    CampaignStarted,
    Event,
    FindingChecked,
    FindingFiled,
    SliceFinished,
    SliceStarted,
    UnconfirmedKept,
)
from attnfuzz.harness.files.lines import AppendedLines
from attnfuzz.harness.search.messages import SliceKind
from attnfuzz.reference.case_types import decode_any
from attnfuzz.reference.foreign import MOST_BYTES, decode_json, read_bytes, reason
from attnfuzz.reference.user_error import UserError
from attnfuzz.reference.validity import ImpossibleCase

_AT_ONCE = (CampaignStarted, FindingFiled, FindingChecked, UnconfirmedKept, CampaignFinished)


class LogError(UserError):
    """A log can't be read. The message has the reason and the remedy."""


class EventLog(AppendedLines):
    """A handler that appends every event to `path`, in one write each.

    Findings are on disk when the call returns, other events with the first event that follows a second or more later.
    """

    def __call__(self, event: Event) -> None:
        """Append `event`. Raises OSError."""
        self.append(event, at_once=isinstance(event, _AT_ONCE))


def read_log(path: Path) -> list[AnyEvent]:
    """Return the events of a log, without a truncated last line. Raises LogError or OSError."""
    events, _ = read_torn_log(path)
    return events


def read_torn_log(path: Path) -> tuple[list[AnyEvent], int]:
    """Return the events of a log, and the number of bytes of a truncated last line. Raises like `read_log`."""
    if path.is_symlink():
        raise LogError(f"{path} is a link, but a campaign writes only in its home: put the log there")
    content = read_bytes(path, MOST_BYTES)
    whole, newline, torn = content.rpartition(b"\n")
    decoder = msgspec.json.Decoder(AnyEvent, dec_hook=decode_any)
    consistency = Consistency()
    events: list[AnyEvent] = []
    for number, line in enumerate(whole.split(b"\n") if newline else (), start=1):
        if number == 1:
            _check_version(path, line)
        try:
            event: AnyEvent = decode_json(line, decoder)
            # An impossible case would break drawing and running.
            if (case := getattr(event, "case", None)) is not None:
                case.validate()
            consistency.check(event)
        except (msgspec.DecodeError, ImpossibleCase, Inconsistent) as error:
            raise LogError(
                f"{path}, line {number}: {reason(error)}. The log is damaged: restore it, or start a new campaign"
            ) from None
        events.append(event)
    if not events:
        raise LogError(f"{path} holds no events: the campaign ended before it started. Run it again")
    return events, len(torn)


class _Head(msgspec.Struct):
    event: Literal["CampaignStarted"]
    log_version: int


def _check_version(path: Path, line: bytes) -> None:
    try:
        head = decode_json(line, _Head)
    except msgspec.DecodeError:
        raise LogError(f"{path} is not an event log of attnfuzz: its first line is not a CampaignStarted") from None
    if head.log_version != LOG_VERSION:
        raise LogError(
            f"{path} was written by another version of attnfuzz (log version {head.log_version}, "
            f"this one reads {LOG_VERSION}): read it with that version"
        )


class Inconsistent(ValueError):
    """An event that is impossible at its place in the log. The message is the reason."""


class Consistency:
    """Follows the events of a log, in their order."""

    def __init__(self) -> None:
        self._at = 0.0
        self._backends: frozenset[str] | None = None

    def check(self, event: AnyEvent) -> None:
        """Raise Inconsistent if `event` can't follow those before it."""
        if isinstance(event, CampaignStarted):
            if self._backends is not None:
                raise Inconsistent("the campaign starts a second time")
            if event.examples is None and event.seconds is None:
                raise Inconsistent("the campaign has no budget")
            self._backends = frozenset(event.backends)
        if isinstance(event, SliceStarted | SliceFinished) and (event.index is None) is (event.kind is SliceKind.DRAWN):
            raise Inconsistent("only slices that draw have an index")
        if event.at < self._at:
            raise Inconsistent(f"its time, {event.at:g} s, is before that of the previous event")
        self._at = event.at
        named = getattr(event, "backend", None), *_backends(event)
        unknown = next((name for name in named if name is not None and name not in (self._backends or ())), None)
        if unknown is not None:
            raise Inconsistent(f"the campaign does not test {unknown[:80]!r}")


def _backends(event: AnyEvent) -> tuple[str | None, ...]:
    return tuple(getattr(getattr(event, field, None), "backend", None) for field in ("fingerprint", "case"))
