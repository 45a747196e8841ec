"""Files that are complete or absent, even after a crash of the machine."""

import contextlib
import os
import shutil
from pathlib import Path

DRAFT = ".draft-"
"""Name prefix of files being written; their suffix is the process id."""

_LONGEST_NAME = 60
"""Most characters of a set-aside file's name, which in UTF-8 fit into 255 bytes."""


def write_durably(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically and durably; interrupted, it leaves a ".draft-" file. Raises OSError."""
    write_unnamed(path, data)
    sync_folder(path.parent)


def write_unnamed(path: Path, data: bytes, *, durably: bool = True) -> None:
    """Write `data` to `path` atomically. Its name is durable once the folder is synced. Raises OSError.

    Without `durably`, a crash of the machine may leave an empty file.
    """
    make_folder(path.parent)
    draft = path.with_name(f"{DRAFT}{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(data)
            if durably:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data` to an open file, even if the system takes parts. Raises OSError, maybe after a part."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable: without this, a crash of the machine may lose a new file."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_folder(path: Path) -> bool:
    """Return whether `path` itself is a folder, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def remove(path: Path) -> None:
    """Remove a file, folder or link at `path`, as far as possible. A link's target stays."""
    with contextlib.suppress(OSError):
        if is_folder(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def set_aside(path: Path) -> Path | None:
    """Rename anything at `path` to a free name beside it, which is returned. Raises OSError."""
    if not os.path.lexists(path):
        return None
    number = 1
    while os.path.lexists(aside := path.with_name(f".aside-{number}-{path.name}"[:_LONGEST_NAME])):
        number += 1
    path.rename(aside)
    return aside


def make_folder(folder: Path) -> None:
    """Make `folder` and its parents durably. Raises OSError."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)
