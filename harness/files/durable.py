"""Files that are whole or not there, also after the machine went away."""

import contextlib
import os
import shutil
from pathlib import Path

DRAFT = ".draft-"
"""How the names of files begin that are being written; they end in the number of the process."""

_LONGEST_NAME = 60
"""Characters of the name of what was set aside: in UTF-8, they take at most the 255 bytes of a file name."""


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


def is_folder(path: Path) -> bool:
    """Whether a folder lies at `path` itself: a link may lead anywhere."""
    return path.is_dir() and not path.is_symlink()


def remove(path: Path) -> None:
    """Remove what lies at `path`, of whatever kind, as far as the system lets us. A link's target stays."""
    with contextlib.suppress(OSError):
        if is_folder(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def set_aside(path: Path) -> Path | None:
    """Free the name `path`: what lies there gets another one beside it, which is returned. Raises OSError."""
    if not os.path.lexists(path):
        return None
    number = 1
    while os.path.lexists(aside := path.with_name(f".aside-{number}-{path.name}"[:_LONGEST_NAME])):
        number += 1
    path.rename(aside)
    return aside


def make_folder(folder: Path) -> None:
    """Make `folder`, and those that it lies in, so that their names last. Raises OSError."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
