"""Kinds of failures that one bug has, kinds of which one says nothing about the other, and the same error.

A case with a failure of its own, made plain, also fails as a cause does that shows nearly everywhere. So does any case
of that cause where it is moved. Kinds tell the two apart, as far as they can.
"""

import math
from collections.abc import Collection

from attnfuzz.harness.verdict.failures import FAULTS, Kind, Observation
from attnfuzz.harness.verdict.fingerprint import WRONG

_NUMBERS = frozenset({Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH})
"""Wrong numbers that are finite."""

_OF_TWO_RUNS = frozenset({Kind.PADDING_LEAK, Kind.REPLAY_DIVERGED, Kind.NONDETERMINISTIC, Kind.METAMORPHIC_MISMATCH})
"""Wrong numbers in one of two runs."""

_STRAY = FAULTS | {Kind.CANARY_OVERWRITTEN, Kind.STRAY_WRITE, Kind.INPUT_MUTATED}
"""Stray accesses."""


def had(kind: Kind, kinds: Collection[Kind]) -> bool:
    """Return whether a cause with these `kinds` has this kind too: wrong outputs and wrong LSEs count as one kind."""
    same = _NUMBERS if kind in _NUMBERS else WRONG if kind in _OF_TWO_RUNS else {kind}
    return not same.isdisjoint(kinds)


def cannot_have(kind: Kind, kinds: Collection[Kind]) -> bool:
    """Return whether a cause with these `kinds` can't have this kind: rows without keys have no numbers."""
    return kind is Kind.EMPTY_ROW and _NUMBERS.issuperset(kinds)


def unlike(kind: Kind, kinds: Collection[Kind]) -> bool:
    """Return whether finite wrong numbers face a stray access or a row without keys. NaN may be either."""
    if kind is Kind.EMPTY_ROW:
        return (_NUMBERS | _STRAY).issuperset(kinds)
    return (kind in _STRAY and _NUMBERS.issuperset(kinds)) or (kind in _NUMBERS and _STRAY.issuperset(kinds))


ROUNDING = 0.01
"""Relative difference of the same error in two kernels, which round differently."""

_EXACT = frozenset({Kind.INPUT_MUTATED, Kind.CANARY_OVERWRITTEN, Kind.EMPTY_ROW})
"""Kinds of failures without a comparable error, for which the same place counts."""


def same_error(error: Observation, other: Observation | None) -> bool:
    """Return whether two failures are the same stray access or write, or have the same largest error over bound."""
    if other is None:
        return False
    if error.access is not None and other.access is not None:
        offset = error.access.offsets.get(error.place)
        alike = (error.access.kind, error.place) == (other.access.kind, other.place)
        return alike and offset is not None and offset == other.access.offsets.get(error.place)
    if error.kind in _EXACT:
        return (error.kind, error.place) == (other.kind, other.place)
    if error.margin is None or other.margin is None:
        return False
    return math.isclose(error.margin, other.margin, rel_tol=ROUNDING)
