"""Restricting a capability to the part that a campaign draws."""

from typing import Any

from msgspec.structs import replace

from attnfuzz.harness.search.drawn_part import DrawnPart
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.features.chosen import known_words
from attnfuzz.reference.promises import promised_part
from attnfuzz.reference.user_error import UserError


class NoSuchPart(UserError):
    """A mode, a dtype or features that none of a backend's cases has. The message says which they have, or why not."""


def restricted(name: str, capability: Any, part: DrawnPart) -> Any:
    """Return this part of the capability of the named backend. Raises NoSuchPart."""
    can = promised_part(capability) if part.promised else capability
    if not (part.modes or part.dtypes or part.only or part.never):
        return can
    if not isinstance(can, Capability):
        raise NoSuchPart(f"{name} is no attention on a KV cache: leave --mode, --dtype, --only and --without out")
    return _with_features(name, _among(name, can, part.modes or can.modes, part.dtypes or can.dtypes), part)


def _with_features(name: str, can: Capability, part: DrawnPart) -> Capability:
    for option, words in (("--only", part.only), ("--without", part.never)):
        try:
            known_words(TABLE, words)
        except ValueError as error:
            raise NoSuchPart(f"{option}: {error}") from error
    try:
        return replace(can, always=can.always + part.only, never=can.never + part.never)
    except ValueError as error:
        raise NoSuchPart(f"{name} has no such cases: {error}") from error


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
