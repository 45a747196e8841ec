"""Sets of feature pairs as integers: one bit per pair, so that whole sets are compared in a few microseconds.

A campaign compares the 1,000 to 3,000 pairs of each case with those reached before. Sets of tuples take milliseconds.
"""

from collections.abc import Iterable, Iterator

from attnfuzz.reference.case import Case
from attnfuzz.strategies.coverage.features import Pair, all_features, axes, features_of_parts

_NAMES = sorted(all_features())
_NUMBER = {name: number for number, name in enumerate(_NAMES)}
_ROW_BYTES = -(-len(_NAMES) // 8)
"""Size of the pairs of one feature with all others, in bytes."""


def pair_bits(case: Case) -> int:
    """Return `pairs_of(case)` as bits, in the order of sorted pairs."""
    whole, steps = features_of_parts(case)
    mask = of_all = _mask(whole)
    partners: dict[str, int] = {}
    for step in steps:
        own = _mask(step)
        of_all |= own
        for name in step:
            partners[name] = partners.get(name, mask) | own
    partners.update(dict.fromkeys(whole, of_all))
    rows = bytearray(_ROW_BYTES * len(_NAMES))
    for name, row in partners.items():
        number = _NUMBER[name]
        start = number * _ROW_BYTES
        rows[start : start + _ROW_BYTES] = (row & _PARTNERS[number]).to_bytes(_ROW_BYTES, "little")
    return int.from_bytes(rows, "little")


def pairs_in(bits: int) -> tuple[Pair, ...]:
    """Return the pairs of a set, sorted."""
    rows = bits.to_bytes(_ROW_BYTES * len(_NAMES), "little")
    return tuple(
        (name, _NAMES[other])
        for number, name in enumerate(_NAMES)
        for other in ones(int.from_bytes(rows[number * _ROW_BYTES : (number + 1) * _ROW_BYTES], "little"))
    )


def _mask(names: Iterable[str]) -> int:
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


def _partners() -> list[int]:
    """Return, for each feature, the later ones on other axes: pairs are in alphabetical order, and of two axes."""
    every = (1 << len(_NAMES)) - 1
    same_axis = {name: _mask(names) for names in axes().values() for name in names}
    return [every >> number + 1 << number + 1 & ~same_axis[name] for number, name in enumerate(_NAMES)]


_PARTNERS = _partners()
