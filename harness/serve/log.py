"""The log of a campaign against a server: appended to, and folded to resume."""

from pathlib import Path

import msgspec

from attnfuzz.harness.files.lines import AppendedLines
from attnfuzz.harness.serve.events import (
    SERVE_LOG_VERSION,
    AnyServeEvent,
    ServeChecked,
    ServeFiled,
    ServeFinished,
    ServeStarted,
    ServeUnconfirmed,
)
from attnfuzz.reference.foreign import MOST_BYTES, decode_json, read_beginning, read_bytes, reason
from attnfuzz.reference.user_error import UserError

_AT_ONCE = (ServeStarted, ServeFiled, ServeChecked, ServeUnconfirmed, ServeFinished)


class ServeLogError(UserError):
    """A log can't be read; the message has the reason and the remedy."""


class ServeLog(AppendedLines):
    """A handler that appends every event."""

    def __call__(self, event: AnyServeEvent) -> None:
        """Append `event`. Raises OSError."""
        self.append(event, at_once=isinstance(event, _AT_ONCE))


def is_serve_log(path: Path) -> bool:
    """Return whether a file is the log of a campaign against a server."""
    try:
        first_line = read_beginning(path, _MOST_OF_A_TAG).partition(b"\n")[0]
    except OSError:
        return False
    return b'"event":"ServeStarted"' in first_line


_MOST_OF_A_TAG = 256
"""A log's first line has its tag before everything else."""


def read_serve_log(path: Path) -> tuple[list[AnyServeEvent], int]:
    """Read a log. Returns its events and the bytes of a truncated last line. Raises ServeLogError or OSError."""
    if path.is_symlink():
        raise ServeLogError(f"{path} is a link, but a campaign writes only in its home: put the log there")
    whole, newline, torn = read_bytes(path, MOST_BYTES).rpartition(b"\n")
    decoder = msgspec.json.Decoder(AnyServeEvent)
    events: list[AnyServeEvent] = []
    for number, line in enumerate(whole.split(b"\n") if newline else (), 1):
        try:
            events.append(decode_json(line, decoder))
        except msgspec.DecodeError as error:
            raise ServeLogError(
                f"{path}, line {number}: {reason(error)}. This is not a log of attnfuzz serve: give another --home"
            ) from None
    first = events[0] if events else None
    if not isinstance(first, ServeStarted) or first.log_version != SERVE_LOG_VERSION:
        raise ServeLogError(f"{path} is not a log of this version of attnfuzz serve: give another --home")
    return events, len(torn)
