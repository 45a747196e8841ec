"""Sets of feature pairs as integers: one bit per pair, so that whole sets are compared in a few microseconds.

A campaign compares the 1,000 to 3,000 pairs of each case with those reached before. Sets of tuples take milliseconds.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

from attnfuzz.reference.case import Case
from attnfuzz.strategies.coverage.features import Pair, all_features, axes, features_of_parts

_NAMES = sorted(all_features())
_NUMBER = {name: number for number, name in enumerate(_NAMES)}
EVERY = (1 << len(_NAMES)) - 1
"""All features."""

_ROW_BYTES = -(-len(_NAMES) // 8)
"""Size of the pairs of one feature with all others, in bytes."""


def pair_bits(case: Case) -> int:
    """Return `pairs_of(case)` as bits, in the order of sorted pairs."""
    whole, steps = features_of_parts(case)
    mask = of_all = mask_of(whole)
    partners: dict[str, int] = {}
    for step in steps:
        own = mask_of(step)
        of_all |= own
        for name in step:
            partners[name] = partners.get(name, mask) | own
    partners.update(dict.fromkeys(whole, of_all))
    rows = bytearray(_ROW_BYTES * len(_NAMES))
    for name, row in partners.items():
        number = _NUMBER[name]
        start = number * _ROW_BYTES
        rows[start : start + _ROW_BYTES] = (row & PARTNERS[number]).to_bytes(_ROW_BYTES, "little")
    return int.from_bytes(rows, "little")


def pairs_in(bits: int) -> tuple[Pair, ...]:
    """Return the pairs of a set, sorted."""
    rows = bits.to_bytes(_ROW_BYTES * len(_NAMES), "little")
    starts = range(0, len(rows), _ROW_BYTES)
    return pairs_of_rows(int.from_bytes(rows[start : start + _ROW_BYTES], "little") for start in starts)


def pairs_of_rows(rows: Iterable[int]) -> tuple[Pair, ...]:
    """Return the pairs of each feature with the later ones in its row, sorted."""
    return tuple(chain.from_iterable(pairs_of_row(feature, row) for feature, row in enumerate(rows)))


def pairs_of_row(feature: int, row: int) -> Iterator[Pair]:
    """Yield the pairs of a feature with the later ones in `row`, sorted."""
    name = _NAMES[feature]
    return ((name, _NAMES[other]) for other in ones(row))


def mask_of(names: Iterable[str]) -> int:
    """Return a set of features: one bit per feature, in alphabetical order."""
    mask = 0
    for name in names:
        mask |= 1 << _NUMBER[name]
    return mask


def ones(bits: int) -> Iterator[int]:
    """Yield the places of the bits that are set, in ascending order."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _partners() -> tuple[int, ...]:
    same_axis = {name: mask_of(names) for names in axes().values() for name in names}
    return tuple(EVERY >> number + 1 << number + 1 & ~same_axis[name] for number, name in enumerate(_NAMES))


PARTNERS = _partners()
"""For each feature, the later ones on other axes: pairs are in alphabetical order, and of two axes."""
