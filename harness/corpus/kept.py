"""What a corpus says of a case."""

from enum import StrEnum
from pathlib import Path

import msgspec

from attnfuzz.reference.case import Case


class Why(StrEnum):
    """What a case is kept for, the best reason first."""

    FAILURE = "failure"
    ADDED = "added"
    MARGIN = "margin"
    COVERAGE = "coverage"

    @property
    def rank(self) -> int:
        """The place in that order, from 0."""
        return list(Why).index(self)

    @property
    def for_good(self) -> bool:
        """Whether such a case stays, whatever others reach."""
        return self in {Why.FAILURE, Why.ADDED}


class IndexEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The case with the id `case` is kept because of `why`, since `time` (seconds since the epoch).

    `margins` has the largest margin of each tier when it was run; a case that was not run has none.
    """

    case: str
    why: Why
    time: float
    margins: dict[str, float] = {}


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A case of a corpus, its file, and its entry in the index."""

    case: Case
    path: Path
    entry: IndexEntry
