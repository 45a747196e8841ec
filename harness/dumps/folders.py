"""A dump's files: paths that never leave its folder, and JSON lines. The writing process may have died midway."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attnfuzz.harness.dumps.recorded import DumpError


def file_in(root: Path, path: Path) -> Path | None:
    """Return `path` if it is a regular file under `root`; None if there is nothing.

    Raises:
        DumpError: it is a link out of `root`, no regular file, or can't be looked at.

    """
    mode = _mode(root, path)
    if mode is None:
        return None
    # A pipe would block its reader.
    if not stat.S_ISREG(mode):
        raise DumpError(f"{path} is not a regular file: it is not part of a dump")
    return path


def folders_in(root: Path, folder: Path) -> list[Path]:
    """Return the folders in `folder`, by name; none if it does not exist.

    Raises:
        DumpError: `folder`, or one in it, is a link out of `root` or can't be looked at.

    """
    if _mode(root, folder) is None:
        return []
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from error
    return [entry for entry in entries if stat.S_ISDIR(_mode(root, entry) or 0)]


def unreadable(path: Path, error: OSError) -> DumpError:
    """Return the error for a file of a dump that the system doesn't let us read."""
    return DumpError(f"can't read {path}: {error.strerror or error}; check that it exists and that you may read it")


def _mode(root: Path, path: Path) -> int | None:
    """Return the file mode, or None if there is nothing. Raises DumpError."""
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            raise DumpError(f"{path} is a link that leaves {root}: a dump is read only from its own folder")
        return path.stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    except RuntimeError as error:  # pathlib's error for a link to itself
        raise DumpError(f"{path} is a broken link: {error}") from error


MAX_RECORD = 16 << 20
"""Most bytes of a record that are read: FlashInfer's have a few kB, or 5 MB for a call with ten thousand tensors."""


def last_record(path: Path) -> tuple[dict[str, Any], bool]:
    """Read the last complete record. Returns it, and whether a truncated one follows.

    Only the file's end is read.

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
        raise DumpError(f"{path} is empty: the process died while dumping this call")
    try:
        return _record(lines[-1]), False
    except ValueError as error:
        reason = error
    # A death can cut off the last line only.
    try:
        return _record(lines[-2]), True
    except (IndexError, ValueError):
        raise DumpError(f"the last line of {path} is not a JSON record ({reason}): copy the dump again") from reason


def records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all records of a file that several processes may have written to; other lines are skipped.

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
    """Parse one record. Raises ValueError for anything else."""
    try:
        # Not msgspec: FlashInfer writes scalars that are not finite as NaN and Infinity.
        record = json.loads(line.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"a {type(record).__name__} instead of an object")  # noqa: TRY004 - content, not an argument
    return record
