"""Comparing errors: whether two failures are the same error, although their cases, modes or kernels differ."""

import math

from attnfuzz.harness.verdict.failures import Kind, Observation

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
