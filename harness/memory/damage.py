"""Bytes that no tensor owns and that were overwritten: the slack beside a tensor, and the gaps inside of it."""

import msgspec


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
