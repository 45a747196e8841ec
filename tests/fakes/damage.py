"""Stands for a damaged or foreign file where attnfuzz expects its own, and for a full disk."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from attnfuzz.reference.foreign import MOST_BYTES_OF_RECORD


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        # Zeros that take no room on the disk.
        file.truncate(MOST_BYTES_OF_RECORD + 1)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "not UTF-8": lambda path: path.write_bytes(b'{"a": "\xff"}\n'),
    "deep": lambda path: path.write_bytes(b"[" * 3000 + b"]" * 3000 + b"\n"),
    "another type": lambda path: path.write_bytes(b"7\n"),
    "NUL": lambda path: path.write_bytes(b"\0" * 100),
    "empty": lambda path: path.touch(),
    "huge": _huge,
    "FIFO": os.mkfifo,
    "folder": lambda path: path.mkdir(),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "missing": lambda _: None,
}
"""Each makes it at a path where nothing is."""


def damage(path: Path, kind: str) -> None:
    """Put damage of this kind in place of what is at `path`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    DAMAGES[kind](path)


def fill_the_disk(patch: pytest.MonkeyPatch, room: int) -> None:
    """As a disk does it: the bytes that fit are written, and the rest is refused."""
    real, left = os.write, [room]

    def write(file: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(file, data[: left[0]])
        left[0] -= written
        return written

    patch.setattr(os, "write", write)
