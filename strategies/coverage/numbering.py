"""Features and pairs of them as bits of integers."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

Pair = tuple[str, str]
"""Two features of different axes, in alphabetical order."""


def pair(one: str, other: str) -> Pair:
    """Return a pair of two features, in alphabetical order."""
    return (one, other) if one < other else (other, one)


class Numbering:
    """Features in alphabetical order, each with the place of its bit.

    `every` is the set of all features. `partners` has for each feature the later ones on other axes: pairs are in
    alphabetical order, and of two axes.
    """

    def __init__(self, axes: Mapping[str, tuple[str, ...]]) -> None:
        self._names = sorted(chain(*axes.values()))
        self._number = {name: number for number, name in enumerate(self._names)}
        self.every = (1 << len(self._names)) - 1
        # Size of the pairs of one feature with all others, in bytes.
        self._row_bytes = -(-len(self._names) // 8)
        same_axis = {name: self.mask_of(names) for names in axes.values() for name in names}
        self.partners = tuple(
            self.every >> number + 1 << number + 1 & ~same_axis[name] for number, name in enumerate(self._names)
        )

    def bits_of_rows(self, partners: Mapping[str, int]) -> int:
        """Return a set of pairs, given the mask of the features that hold together with each feature."""
        size = self._row_bytes
        rows = bytearray(size * len(self._names))
        for name, row in partners.items():
            number = self._number[name]
            start = number * size
            rows[start : start + size] = (row & self.partners[number]).to_bytes(size, "little")
        return int.from_bytes(rows, "little")

    def pairs_in(self, bits: int) -> tuple[Pair, ...]:
        """Return the pairs of a set, sorted."""
        rows = bits.to_bytes(self._row_bytes * len(self._names), "little")
        starts = range(0, len(rows), self._row_bytes) if rows else ()
        return self.pairs_of_rows(int.from_bytes(rows[start : start + self._row_bytes], "little") for start in starts)

    def pairs_of_rows(self, rows: Iterable[int]) -> tuple[Pair, ...]:
        """Return the pairs of each feature with the later ones in its row, sorted."""
        return tuple(chain.from_iterable(self.pairs_of_row(feature, row) for feature, row in enumerate(rows)))

    def pairs_of_row(self, feature: int, row: int) -> Iterator[Pair]:
        """Yield the pairs of a feature with the later ones in `row`, sorted."""
        name = self._names[feature]
        return ((name, self._names[other]) for other in ones(row))

    def mask_of(self, names: Iterable[str]) -> int:
        """Return a set of features: one bit per feature, in alphabetical order."""
        mask = 0
        for name in names:
            mask |= 1 << self._number[name]
        return mask


def ones(bits: int) -> Iterator[int]:
    """Yield the places of the bits that are set, in ascending order."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest
