"""The event log: one JSON object per line, only ever appended to."""

from pathlib import Path

import msgspec

from attnfuzz.harness.campaign.events import Event, Progress


class EventLog:
    """A handler that appends every event but progress to `path`. Raises OSError when it can't."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def __call__(self, event: Event) -> None:
        """Append `event`."""
        if not isinstance(event, Progress):
            self._file.write(msgspec.json.encode(event) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
