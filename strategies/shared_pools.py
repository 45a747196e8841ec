"""Drawing pools of layers with a window, and pools that two groups of layers share."""

from functools import cache

from hypothesis.strategies import DrawFn
from msgspec.structs import replace

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Granularity, OtherGroup, Pages, Tombstone
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.validity import may_share_pool
from attnfuzz.strategies.choices import Choice, WeightedFlag, on
from attnfuzz.strategies.lean import Lean

_ALONE_OF = 3
"""Weight of a pool of one group, relative to each geometry of a second group."""

_TAILS = WeightedFlag(2, 1, ("window tail=yes",))


def draw_shared_pool(
    draw: DrawFn, can: Capability, geometry: Geometry, granularity: Granularity, pages: Pages, lean: Lean
) -> Pages:
    """Draw the tombstones of a layer with a window, and another group of layers in the pool, if `can` supports them."""
    if can.tombstones and geometry.window_left >= 0:
        pages = replace(pages, tombstone=draw(_tombstone(can.tombstones).under(lean)))
    if can.window_tail and pages.tombstone is not Tombstone.NONE and draw(_TAILS.under(lean)):
        return replace(pages, window_tail=True)
    groups = tuple(group for group in can.other_groups if may_share_pool(geometry, granularity, group))
    return replace(pages, other_group=draw(_other_group(groups).under(lean))) if groups else pages


@cache
def _tombstone(entries: tuple[Tombstone, ...]) -> Choice[Tombstone]:
    return Choice((Tombstone.NONE, *entries * 2), on("tombstones"))


@cache
def _other_group(groups: tuple[OtherGroup, ...]) -> Choice[OtherGroup]:
    return Choice((OtherGroup.NONE,) * _ALONE_OF * len(groups) + groups, on("other group"))
