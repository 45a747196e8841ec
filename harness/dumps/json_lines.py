"""Files of JSON records, one a line, from a process that may have died while it wrote."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnfuzz.harness.dumps.folders import unreadable
from attnfuzz.harness.dumps.recorded import DumpError

MAX_RECORD = 16 << 20
"""Bytes of a record that are read: FlashInfer's have a few kB, or 5 MB for a call with ten thousand tensors."""


def last_record(path: Path) -> tuple[dict[str, Any], bool]:
    """The last record that is whole, and whether something that is cut off follows it.

    However long the file is, only its end is read.

    Raises:
        DumpError: there is none, or the file can't be read.

    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - MAX_RECORD))
            lines = [line for line in file.read().split(b"\n") if line.strip()]
    except OSError as error:
        raise unreadable(path, error) from error
    if not lines:
        raise DumpError(f"{path} is empty: the process died while it dumped this call")
    try:
        return _record(lines[-1]), False
    except ValueError as error:
        reason = error
    # A death can cut off the last line only.
    try:
        return _record(lines[-2]), True
    except (IndexError, ValueError):
        raise DumpError(f"the last line of {path} is no JSON record ({reason}): copy the dump anew") from reason


def records(path: Path) -> Iterator[dict[str, Any]]:
    """All records of a file that several processes may have written to; what is none is passed over.

    Raises:
        DumpError: the file can't be read.

    """
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_RECORD):
                try:
                    yield _record(line)
                except ValueError:
                    continue
    except OSError as error:
        raise unreadable(path, error) from error


def _record(line: bytes) -> dict[str, Any]:
    """One record. ValueError for anything else, however it is made."""
    try:
        # Not msgspec: FlashInfer writes scalars that are not finite as NaN and Infinity.
        record = json.loads(line.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__} instead of an object")  # noqa: TRY004 - it is content, no argument
    return record
