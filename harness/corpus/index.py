"""The index of a corpus: one JSON object per line, append-only, with the reason why each case is kept.

The case files are sufficient: a case whose line was lost counts as put there by a person.
"""

import os
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import msgspec

from attnfuzz.harness.files.durable import set_aside, write_all, write_durably
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.foreign import MOST_BYTES, decode_json, read_bytes, reason
from attnfuzz.reference.user_error import UserError


class Why(StrEnum):
    """Reasons to keep a case, the best first."""

    FAILURE = "failure"
    ADDED = "added"
    MARGIN = "margin"
    COVERAGE = "coverage"

    @property
    def rank(self) -> int:
        """Its place in that order, from 0."""
        return list(Why).index(self)

    @property
    def for_good(self) -> bool:
        """Whether such a case is never pruned."""
        return self in {Why.FAILURE, Why.ADDED}


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The entry of the case with the id `case`, kept because of `why` since `time` (seconds since the epoch).

    `margins` has the largest margin of each tier when it was run; a case that was not run has none.
    """

    case: str
    why: Why
    time: float
    margins: dict[str, float] = {}


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A case of a corpus, its file, and its entry in the index."""

    case: AnyCase
    path: Path
    entry: IndexEntry


NAME = "index.ndjson"
FORMAT = "attnfuzz-corpus"
VERSION = 1


class CorpusError(UserError):
    """A folder is not a corpus, or can't be read. The message has the remedy."""


class _Head(msgspec.Struct, frozen=True):
    format: str
    version: int


class Index:
    """The index in `folder`. `entries` are by case id, `troubles` has a line for each damaged line.

    If it can't be read, or its first line is damaged, it is set aside on the next write. Raises CorpusError for a
    folder that is not a corpus, or is a newer one. An empty or absent one is an empty corpus.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self.entries: dict[str, IndexEntry] = {}
        self.troubles: list[str] = []
        self._damaged = False
        content = self._content(folder)
        self._torn = bool(content) and not content.endswith(b"\n")
        if content:
            self._read(content)

    def begin(self) -> None:
        """Create the file if there is no usable one; it marks a corpus, and precedes the first case. Raises OSError."""
        if self._damaged or not os.path.lexists(self._path):
            self.rewrite(tuple(self.entries.values()))

    def append(self, entries: Iterable[IndexEntry], *, durably: bool = True) -> None:
        """Append lines. Raises OSError."""
        new = {entry.case: entry for entry in entries}
        self.entries.update(new)
        lines = msgspec.json.Encoder().encode_lines(list(new.values()))
        # Reopened each time, because another process may have rewritten the file.
        with self._path.open("ab", buffering=0) as file:
            data = b"\n" + lines if self._torn else lines
            # Until it is complete, because a full disk may take only a part.
            self._torn = True
            write_all(file.fileno(), data)
            if durably:
                os.fsync(file.fileno())
        self._torn = False

    def rewrite(self, entries: Iterable[IndexEntry]) -> None:
        """Replace all lines atomically. Raises OSError."""
        self.entries = {entry.case: entry for entry in entries}
        head = _Head(format=FORMAT, version=VERSION)
        if self._damaged:
            set_aside(self._path)
            self._damaged = False
        write_durably(self._path, msgspec.json.Encoder().encode_lines([head, *self.entries.values()]))
        self._torn = False

    def _read(self, content: bytes) -> None:
        head, *lines = content.split(b"\n")
        for number, line in enumerate(lines, start=2):
            if not line:
                continue
            try:
                entry = decode_json(line, IndexEntry)
            except msgspec.DecodeError as error:
                self.troubles.append(f"{self._path}, line {number} is skipped: {reason(error)}")
            else:
                self.entries[entry.case] = entry
        self._check_head(head)

    def _content(self, folder: Path) -> bytes:
        try:
            return read_bytes(self._path, MOST_BYTES)
        except NotADirectoryError:
            raise CorpusError(f"{folder} is a file: a corpus is a folder; name another one") from None
        except FileNotFoundError:
            if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
                raise CorpusError(
                    f"{folder} holds other files and is not a corpus ({NAME} is missing): name another folder"
                ) from None
        except OSError as error:
            if not folder.is_dir():
                raise
            self._damaged = True
            self.troubles.append(f"{self._path} can't be read ({error.strerror}): reasons to keep cases are lost")
        return b""

    def _check_head(self, line: bytes) -> None:
        try:
            head = decode_json(line, _Head)
        except msgspec.DecodeError as error:
            if self.entries or not isinstance(error, msgspec.ValidationError):
                self._damaged = True
                self.troubles.append(f"{self._path}, line 1 is skipped: {reason(error)}")
                return
            head = _Head(format="", version=0)
        if head.format != FORMAT:
            raise CorpusError(f"{self._path} is damaged or not a corpus index: restore it, or name another folder")
        if head.version != VERSION:
            raise CorpusError(
                f"{self._path} was written by another version of attnfuzz (corpus version {head.version}, this "
                f"one reads {VERSION}): use that version, or name another folder"
            )
