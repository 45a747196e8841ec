"""Files that are whole or not there, also after the machine went away."""

import os
from pathlib import Path


def write_durably(path: Path, data: bytes) -> None:
    """Write `data` to `path` in one move; it is on the disk when this returns. Raises OSError.

    What an interrupted write leaves is a file whose name begins with ".draft-", beside `path`.
    """
    _make_folder(path.parent)
    draft = path.with_name(f".draft-{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` last: without this, a machine that goes away may take a new file along."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(folder: Path) -> None:
    if not folder.exists():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
