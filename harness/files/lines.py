"""A file of JSON lines that is only appended to, and survives a killed process whole."""

import contextlib
import os
import time
from pathlib import Path
from typing import Self

import msgspec

from attnfuzz.harness.files.durable import make_folder, sync_folder, write_all

SECONDS_PER_SYNC = 1.0
"""Seconds of lines lost with a machine, while there are lines; a killed process loses nothing."""


class AppendedLines:
    """Appends records to `path`, in one write each.

    A failing write, on a full disk, leaves no half line behind, and raises OSError. `torn_bytes` of a truncated last
    line are removed first.
    """

    def __init__(self, path: Path, *, torn_bytes: int = 0) -> None:
        make_folder(path.parent)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._encoder = msgspec.json.Encoder()
        self._size = os.fstat(self._file).st_size - torn_bytes
        if torn_bytes:
            os.ftruncate(self._file, self._size)
        self._synced_at = time.monotonic()
        sync_folder(path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, record: msgspec.Struct, *, at_once: bool) -> None:
        """Append `record`; it is on disk when the call returns if it has to be `at_once`, else within a second."""
        line = self._encoder.encode(record) + b"\n"
        try:
            write_all(self._file, line)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)
        if at_once or time.monotonic() - self._synced_at >= SECONDS_PER_SYNC:
            os.fsync(self._file)
            self._synced_at = time.monotonic()

    def close(self) -> None:
        """Sync the rest, and close the file."""
        with contextlib.suppress(OSError):
            os.fsync(self._file)
        os.close(self._file)
