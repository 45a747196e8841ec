"""Files that are whole or not there, also after the machine went away."""

import os
from pathlib import Path

DRAFT = ".draft-"
"""How the names of files begin that are being written; they end in the number of the process."""


def write_durably(path: Path, data: bytes) -> None:
    """Write `data` to `path` in one move; it is on the disk when this returns. Raises OSError.

    What an interrupted write leaves is a file whose name begins with ".draft-", beside `path`.
    """
    make_folder(path.parent)
    draft = path.with_name(f"{DRAFT}{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` to an open file. Raises OSError, and may have written a part then.

    A disk that is almost full takes a part without a word; what stopped it shows when the rest is written.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` last: without this, a machine that goes away may take a new file along."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make `folder`, and those that it lies in, so that their names last. Raises OSError."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
