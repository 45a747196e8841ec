"""Upgrade events logged by older releases, before they are decoded."""

import msgspec
from msgspec import structs

from attnfuzz.harness.search.messages import SliceKind, Tally
from attnfuzz.reference.foreign import decode_json

OLDEST_VERSION = 2
"""The oldest log version that can be upgraded."""

_KINDS = {b"-1": SliceKind.KEPT, b"-2": SliceKind.ONCE_MORE}
"""Old slice numbers that stood for a slice kind."""

_COUNTED = frozenset(field.name for field in structs.fields(Tally))
"""Old count fields, beside the backend's name."""

_Fields = dict[str, msgspec.Raw]


def upgrade(line: bytes) -> bytes:
    """Convert a log event of any version to this one.

    An older log has events of both once its campaign was resumed. Raises msgspec.DecodeError.
    """
    fields = decode_json(line, _Fields)
    match bytes(fields.get("event", b"")):
        case b'"SliceStarted"' | b'"SliceFinished"' if "kind" not in fields:
            return msgspec.json.encode(_with_kind(fields))
        case b'"Progress"' if "tally" not in fields:
            return msgspec.json.encode(_with_tally(fields))
    return line


def _with_kind(fields: _Fields) -> dict[str, object]:
    kind = _KINDS.get(bytes(fields.get("index", b"")), SliceKind.DRAWN)
    return fields | {"kind": kind} | ({} if kind is SliceKind.DRAWN else {"index": None})


def _with_tally(fields: _Fields) -> dict[str, object]:
    counted: dict[str, object] = {name: fields.pop(name) for name in _COUNTED & fields.keys()}
    return fields | {"tally": {"type": Tally.__name__} | counted}
