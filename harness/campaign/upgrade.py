"""Brings events that older releases logged up to date, before they are decoded."""

import msgspec

from attnfuzz.harness.search.messages import SliceKind
from attnfuzz.reference.foreign import decode_json

OLDEST_VERSION = 2
"""The oldest version of the log that can be brought up to date."""

_KINDS = {b"-1": SliceKind.KEPT, b"-2": SliceKind.ONCE_MORE}
"""What stood for the number of a slice that draws nothing."""

_Fields = dict[str, msgspec.Raw]


def upgrade(line: bytes) -> bytes:
    """Return an event of the log, of whatever version, as this version writes it.

    The log of an older release has events of both once its campaign was resumed. Raises msgspec.DecodeError.
    """
    fields = decode_json(line, _Fields)
    match bytes(fields.get("event", b"")):
        case b'"SliceStarted"' | b'"SliceFinished"' if "kind" not in fields:
            return msgspec.json.encode(_with_kind(fields))
    return line


def _with_kind(fields: _Fields) -> dict[str, object]:
    kind = _KINDS.get(bytes(fields.get("index", b"")), SliceKind.DRAWN)
    return fields | {"kind": kind} | ({} if kind is SliceKind.DRAWN else {"index": None})
