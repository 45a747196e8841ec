"""Cutting positions out of the axes of views, and so out of the buffers below them.

Views may share a buffer: a cut in one affects all.
"""

import math
from collections.abc import Iterable, Mapping

import torch
from msgspec.structs import replace

from attnfuzz.harness.calls.literal_buffers import with_content
from attnfuzz.harness.reduce.placed_views import Place, views_of, with_contents, with_views
from attnfuzz.harness.reduce.units import Positions, Units
from attnfuzz.reference.calls import Buffer, CallCase, View, content_of

Cuts = Mapping[Place, Mapping[int, Positions]]
"""The positions to drop from each axis of views, by their places."""


def cut(case: CallCase, cuts: Cuts) -> CallCase:
    """Apply `cuts` to the case. Raises Uncuttable."""
    kept = {}
    for buffer, views in _buffers_and_views(case):
        asked = [(view, axis, drop) for place, view in views for axis, drop in cuts.get(place, {}).items() if drop]
        if asked:
            finest = min(view.stride[axis] * (view.dtype or buffer.dtype).itemsize for view, axis, _ in asked)
            units = _units(case, buffer, views, finest)
            flags = torch.ones(units.count, dtype=torch.bool)
            for view, axis, drop in asked:
                units.drop(flags, view, axis, drop)
            kept[buffer.name] = units, flags
    return _without_the_rest(case, kept, cuts)


def trim(case: CallCase, names: Iterable[str]) -> CallCase:
    """Drop the elements of these buffers that no view reaches, which makes strides plain. Raises Uncuttable."""
    kept = {}
    for buffer, views in _buffers_and_views(case):
        if buffer.name in names:
            units = _units(case, buffer, views, math.inf)
            flags = torch.zeros(units.count, dtype=torch.bool)
            for _, view in views:
                if 0 not in view.shape:
                    units.seen_by(view, flags).fill_(value=True)
            kept[buffer.name] = units, flags
    return _without_the_rest(case, kept, {})


def _buffers_and_views(case: CallCase) -> Iterable[tuple[Buffer, list[tuple[Place, View]]]]:
    found: dict[str, list[tuple[Place, View]]] = {}
    for place, view in views_of(case):
        found.setdefault(view.buffer, []).append((place, view))
    return ((buffer, found.get(buffer.name, [])) for buffer in case.buffers)


def _units(case: CallCase, buffer: Buffer, views: list[tuple[Place, View]], finest: float) -> Units:
    writes = [write for call in case.calls for write in call.writes] + list(case.answer.writes if case.answer else ())
    own = (write for write in writes if write.name == buffer.name)
    return Units(buffer, (view for _, view in views), own, finest)


def _without_the_rest(case: CallCase, kept: Mapping[str, tuple[Units, torch.Tensor]], cuts: Cuts) -> CallCase:
    """Return the case with only the kept units of buffers."""

    def rebuilt(place: Place, view: View) -> View:
        if view.buffer not in kept:
            return view
        units, flags = kept[view.buffer]
        return units.rebuilt(view, flags, cuts.get(place, {}))

    def resized(buffer: Buffer) -> Buffer | None:
        if buffer.name not in kept:
            return buffer
        units, flags = kept[buffer.name]
        return _resized(buffer, units, flags, exact=case.answer is not None)

    return with_contents(with_views(case, rebuilt), resized)


def _resized(buffer: Buffer, units: Units, kept: torch.Tensor, *, exact: bool) -> Buffer | None:
    """Return the remainder of a buffer or of a write to one, or None for a write that is gone.

    Without `exact`, drawn content is drawn again, which keeps it short. Without an answer, that is just as good.
    """
    itemsize = buffer.dtype.itemsize
    first = buffer.offset * itemsize // units.size
    own = kept[first : first + buffer.size * itemsize // units.size]
    size = int(own.sum()) * units.size // itemsize
    offset = int(kept[:first].sum()) * units.size // itemsize
    drawn_anew = buffer.drawn is not None and not exact
    content = None if drawn_anew else content_of(buffer)
    if content is None:
        return replace(buffer, size=size, offset=offset)
    data = content.view(buffer.dtype.bits).view(torch.uint8).view(-1, units.size)[own].flatten()
    return with_content(buffer, data.view(buffer.dtype.torch_dtype), offset) if size or not buffer.offset else None
