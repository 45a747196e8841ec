"""Fingerprints, the identity of bugs: a coarse one before shrinking, a fine one after it."""

import hashlib
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from attnfuzz.harness.family import family_of
from attnfuzz.harness.verdict.failures import FAULTS, Kind, Observation
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import (
    Case,
)
from attnfuzz.reference.features import TABLE

WRONG = frozenset({Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH, Kind.NOT_FINITE, Kind.UNWRITTEN})
"""Kinds that differ only in the stray numbers that a kernel read or left: another request's, zeros, NaN."""

_OF_ALL_MODES = frozenset({Kind.INPUT_MUTATED, Kind.RAISED, Kind.UNEXPECTED_REJECTION})


class Fingerprint(msgspec.Struct, frozen=True):
    """The coarse fingerprint: a failure's properties before its case is shrunk."""

    backend: str
    kind: Kind
    kernel: str
    mode: str
    place: str

    @classmethod
    def of(cls, backend: str, observation: Observation) -> "Fingerprint":
        """Return the fingerprint of one failure of `backend`."""
        return cls(backend, observation.kind, observation.kernel, observation.mode, observation.place)

    @property
    def anywhere(self) -> "Fingerprint":
        """The fingerprint without the place for a fault, since a wild access hits by chance. Others are unchanged."""
        return replace(self, place="") if self.kind in FAULTS else self

    @property
    def claimed(self) -> "Fingerprint":
        """The fingerprint without parts that may differ between failures that one job settles first, before others do.

        An input that is changed and an exception of one type are most likely one mistake in all modes.
        """
        return replace(self, mode="") if self.kind in _OF_ALL_MODES else self.anywhere

    @property
    def family(self) -> str:
        """The kinds that one bug shows by turns: wrong numbers, faults, or the kind itself."""
        return "wrong" if self.kind in WRONG else "fault" if self.kind in FAULTS else self.kind

    def among(self, failures: Iterable[Observation]) -> Observation | None:
        """Return the first failure of the same backend with this fingerprint, a fault at any place, or None."""
        wanted = self.anywhere
        return next((each for each in failures if Fingerprint.of(self.backend, each).anywhere == wanted), None)

    def wrong_among(self, failures: Iterable[Observation]) -> Observation | None:
        """Return the first failure as `among` does, but all kinds in `WRONG` count as one."""
        alike = WRONG if self.kind in WRONG else {self.kind}
        return self.among(replace(each, kind=self.kind) for each in failures if each.kind in alike)


def fine(case: AnyCase, observation: Observation) -> str:
    """Return ten hex digits that are equal for shrunk cases that fail alike: backend, kind, kernel and features.

    The place is left out, because it is chance whether a kernel runs past the keys or the queries first, and so are
    lengths: a bug of 100 keys and more is found again with 101.
    """
    parts = (case.backend, observation.kind, observation.kernel, *family_of(case).traits(case))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def traits(case: Case) -> tuple[str, ...]:
    """Return the modes of a case of attention, the words for its features that names of findings count, in order."""
    modes = dict.fromkeys(step.mode.value for step in case.steps)
    relation = () if case.relation is None else (case.relation.words,)
    return (*modes, *sorted(TABLE.filed_words(case), key=_ORDER.index), *relation)


_OLDEST = (
    "several steps",
    "replayed",
    "padded",
    "several requests",
    "ragged",
    "empty kv",
    "kv < q",
    "idle request",
    "fp8 kv",
    "window",
    "full mask",
    "tree",
    "custom mask",
    "mask with empty rows",
    "sinks",
    "soft cap",
    "magnitude",
    "scaled",
    "query scale",
    "kept queries",
    "four ranks",
    "interleave",
    "all to all",
    "views",
    "pages",
    "max slack",
    "argument forms",
    "life",
    "asynchronous",
    "late device",
    "used workspace",
)
_ORDER = tuple(dict.fromkeys((*_OLDEST, *(word for row in TABLE.rows for word, _ in row.filed))))
"""The order in which names of findings count words. It stays, or findings of older homes would get other names."""
