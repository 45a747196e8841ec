"""Bytes that no tensor owns and that were overwritten: the slack beside a tensor, and the gaps inside of it."""

import ctypes

import msgspec

from attnfuzz.harness.memory import raw_bytes
from attnfuzz.harness.memory.poison import Pattern


class Damage(msgspec.Struct, frozen=True):
    """`count` overwritten bytes around the tensor `name`, the first of them `offset` bytes from its start.

    `nbytes` is the tensor's extent: an offset below 0 lies before it, one in [0, nbytes) in a gap between its
    elements, and one from `nbytes` on past its end.
    """

    name: str
    offset: int
    count: int
    nbytes: int

    def __str__(self) -> str:
        if self.offset < 0:
            where = f"before {self.name}, from {-self.offset} bytes before its start"
        elif self.offset < self.nbytes:
            where = f"in the gaps of {self.name}, from {self.offset} bytes after its start"
        else:
            where = f"after {self.name}, from {self.offset - self.nbytes} bytes past its end"
        return f"{self.count} bytes overwritten {where}"


def slack_damage(name: str, tensor: tuple[int, int], slack: tuple[int, int], pattern: Pattern) -> Damage:
    """Damage to the slack of a tensor, which held `pattern`. `tensor` and `slack`: address and size in bytes."""
    (address, nbytes), (start, size) = tensor, slack
    offset, count = _differences(ctypes.string_at(start, size), pattern.content(size))
    return Damage(name, start + offset - address, count, nbytes)


def gap_damage(name: str, tensor: tuple[int, int], expected: int) -> Damage | None:
    """Damage to a tensor with gaps, against what it should hold, at the address `expected`; None if there is none."""
    address, nbytes = tensor
    if raw_bytes.same(address, expected, nbytes):
        return None
    offset, count = _differences(ctypes.string_at(address, nbytes), ctypes.string_at(expected, nbytes))
    return Damage(name, offset, count, nbytes)


def _differences(found: bytes, expected: bytes) -> tuple[int, int]:
    offsets = [offset for offset, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other]
    return offsets[0], len(offsets)
