"""A request for one planted access, which shows whether a worker's memory detects it."""

import msgspec

from attnfuzz.reference.case import Guard
from attnfuzz.reference.device import Device


class StrayRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A read or write of two bytes of a `device`'s memory, `offset` bytes from the start or the end of `tensor`.

    The tensor is one of a small decode, guarded on the side of `guard`. The offset is even.
    """

    device: Device
    guard: Guard
    tensor: str
    offset: int
    from_end: bool = False
    write: bool
