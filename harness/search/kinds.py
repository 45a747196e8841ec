"""Kinds of failures that one bug can have, and kinds that are no evidence for each other.

A case with a failure of its own, made plain, also fails like a cause that is visible almost everywhere, and any case of
that cause fails where it is moved. Kinds distinguish the two, as far as possible.
"""

from collections.abc import Collection

from attnfuzz.harness.verdict.failures import FAULTS, Kind
from attnfuzz.harness.verdict.fingerprint import WRONG

_NUMBERS = frozenset({Kind.OUTPUT_MISMATCH, Kind.LSE_MISMATCH})
"""Wrong numbers that are finite."""

_OF_TWO_RUNS = frozenset({Kind.PADDING_LEAK, Kind.REPLAY_DIVERGED, Kind.NONDETERMINISTIC, Kind.METAMORPHIC_MISMATCH})
"""Wrong numbers in one of two runs."""

_STRAY = FAULTS | {Kind.CANARY_OVERWRITTEN, Kind.STRAY_WRITE, Kind.INPUT_MUTATED}
"""Accesses where there should be none."""


def had(kind: Kind, kinds: Collection[Kind]) -> bool:
    """Return whether a cause with these `kinds` has this one too: wrong outputs and wrong LSEs count as one."""
    same = _NUMBERS if kind in _NUMBERS else WRONG if kind in _OF_TWO_RUNS else {kind}
    return not same.isdisjoint(kinds)


def cannot_have(kind: Kind, kinds: Collection[Kind]) -> bool:
    """Return whether a cause with these `kinds` can't have this one: rows without keys have no numbers."""
    return kind is Kind.EMPTY_ROW and _NUMBERS.issuperset(kinds)


def unlike(kind: Kind, kinds: Collection[Kind]) -> bool:
    """Return whether one is finite wrong numbers, the other a stray access or a row without keys. NaN may be either."""
    if kind is Kind.EMPTY_ROW:
        return (_NUMBERS | _STRAY).issuperset(kinds)
    return (kind in _STRAY and _NUMBERS.issuperset(kinds)) or (kind in _NUMBERS and _STRAY.issuperset(kinds))
