"""Kinds of failures that one bug can have, and kinds that are no evidence for each other.

A cause that is visible almost everywhere also shows in a case that has a different failure, once this case is made
plain, and any case of the cause fails wherever it is moved. Kinds distinguish both failures as far as possible.
"""

from collections.abc import Collection

from attnfuzz.harness.verdict.failures import FAULTS, Kind
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
