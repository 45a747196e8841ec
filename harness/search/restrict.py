"""Restricting a capability to the part that a campaign draws."""

from typing import Any

from msgspec.structs import replace

from attnfuzz.harness.search.drawn_part import DrawnPart
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.promises import promised_part
from attnfuzz.reference.user_error import UserError


class NoSuchPart(UserError):
    """A mode or a dtype that none of a backend's cases has. The message names those that they have."""


def restricted(name: str, capability: Any, part: DrawnPart) -> Any:
    """Return this part of the capability of the named backend. Raises NoSuchPart."""
    can = promised_part(capability) if part.promised else capability
    if not part.modes and not part.dtypes:
        return can
    if not isinstance(can, Capability):
        raise NoSuchPart(f"{name} is no attention on a KV cache: leave --mode and --dtype out")
    return _among(name, can, part.modes or can.modes, part.dtypes or can.dtypes)


def _among(name: str, can: Capability, modes: tuple[str, ...], dtypes: tuple[str, ...]) -> Capability:
    for option, asked, has in (("--mode", modes, can.modes), ("--dtype", dtypes, can.dtypes)):
        if unknown := [each for each in asked if each not in has]:
            raise NoSuchPart(f"{name} has no {', '.join(unknown)}: give {option} one of {', '.join(has)}")
    buckets = tuple(
        bucket
        for bucket in can.buckets
        if bucket.dtype in dtypes and (not bucket.modes or not set(bucket.modes).isdisjoint(modes))
    )
    if can.buckets and not buckets:
        raise NoSuchPart(f"{name} has no modules for {', '.join(modes)} in {', '.join(dtypes)}: give another --dtype")
    return replace(
        can,
        buckets=buckets,
        modes=tuple(mode for mode in can.modes if mode in modes),
        graph_modes=tuple(mode for mode in can.graph_modes if mode in modes),
        dtypes=tuple(dtype for dtype in can.dtypes if dtype in dtypes),
    )
