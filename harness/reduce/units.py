"""A buffer in units of bytes within which no view begins or ends, for cutting it and its views."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from attnfuzz.harness.memory.allocation import dense_stride
from attnfuzz.reference.calls import Buffer, View

Positions = range | frozenset[int]


class Uncuttable(ValueError):
    """A cut after which a view can't be described by strides."""


@dataclass(frozen=True)
class _Form:
    """A view as a grid: dense elements fill a block of bytes, over which the outer axes stride."""

    outer: tuple[int, ...]
    block: int
    width: int


class Units:
    """A buffer in units. `finest` is the smallest number of bytes that a cut drops."""

    def __init__(self, buffer: Buffer, views: Iterable[View], writes: Iterable[Buffer], finest: float) -> None:
        self._itemsize = buffer.dtype.itemsize
        self._finest = finest
        size = buffer.size * self._itemsize
        for view in views:
            if 0 not in view.shape:
                form = self._form(view)
                strides = (view.stride[axis] * form.width for axis in form.outer)
                size = math.gcd(size, view.offset * form.width, form.block, *strides)
        for write in writes:
            size = math.gcd(size, write.offset * self._itemsize, write.size * self._itemsize)
        self.size = max(size, 1)
        self.count = buffer.size * self._itemsize // self.size

    def seen_by(self, view: View, per_unit: torch.Tensor) -> torch.Tensor:
        """Return a flag or number per unit of the buffer, arranged like a view: [outer axes ..., units of a block]."""
        form = self._form(view)
        shape = [*(view.shape[axis] for axis in form.outer), form.block // self.size]
        stride = [*(view.stride[axis] * form.width // self.size for axis in form.outer), 1]
        return per_unit.as_strided(shape, stride, view.offset * form.width // self.size)

    def drop(self, kept: torch.Tensor, view: View, axis: int, positions: Positions) -> None:
        """Clear `kept` at these positions of a view's axis and the gaps after them."""
        length, stride = view.shape[axis], view.stride[axis]
        if 0 in view.shape or not stride:
            return
        if length == 1:
            if 0 in positions:
                self.seen_by(view, kept).fill_(value=False)
            return
        form = self._form(view)
        outside = [step for step, size in zip(view.stride, view.shape, strict=True) if size > 1 and step > stride]
        place = torch.arange(self.count) - view.offset * form.width // self.size
        if outside:
            place %= min(outside) * form.width // self.size
        place = place.div(stride * form.width // self.size, rounding_mode="floor")
        # Units at no position of the axis map to the last flag, which stays clear.
        dropped = torch.zeros(length + 1, dtype=torch.bool)
        dropped[:length] = marked(positions, length)
        kept &= ~dropped[place.where((place >= 0) & (place < length), length)]

    def rebuilt(self, view: View, kept: torch.Tensor, asked: Mapping[int, Positions]) -> View:
        """Return the view of the kept units. Raises Uncuttable.

        `asked` are the positions to drop, for axes without elements of their own: of empty and expanded views.
        """
        shape, stride = list(view.shape), list(view.stride)
        for axis, positions in asked.items():
            shape[axis] -= int(marked(positions, shape[axis]).sum())
        if 0 in shape:
            return View(buffer=view.buffer, shape=tuple(shape), stride=dense_stride(shape), dtype=view.dtype)
        form = self._form(view)
        flags, places = self.seen_by(view, kept), self.seen_by(view, kept.cumsum(0) - 1)
        if not flags.any():
            raise Uncuttable(f"nothing is left of a view of {view.buffer}")
        for number, axis in enumerate(form.outer):
            others = [other for other in range(flags.ndim) if other != number]
            left = flags.amax(others).nonzero()[:, 0] if stride[axis] else torch.arange(shape[axis])
            flags, places = flags.index_select(number, left), places.index_select(number, left)
            shape[axis] = len(left)
            if shape[axis] > 1:
                step = places.select(number, 1).flatten()[0] - places.flatten()[0]
                stride[axis] = int(step) * self.size // form.width
        for axis in reversed(range(len(shape))):
            if shape[axis] == 1:
                stride[axis] = max((shape[inner] * stride[inner] for inner in range(axis + 1, len(shape))), default=1)
        offset = int(places.flatten()[0]) * self.size // form.width
        rebuilt = View(buffer=view.buffer, shape=tuple(shape), stride=tuple(stride), offset=offset, dtype=view.dtype)
        # Blocks must be whole, and all elements must fit the strides, not only the first ones.
        if not flags.all() or not self._same(places, rebuilt, form):
            raise Uncuttable(f"the rest of a view of {view.buffer} has no strides")
        return rebuilt

    def _same(self, places: torch.Tensor, view: View, form: _Form) -> bool:
        expected = torch.full_like(places, view.offset * form.width // self.size)
        steps = [*(view.stride[axis] * form.width // self.size for axis in form.outer), 1]
        for number, step in enumerate(steps):
            along = torch.arange(places.shape[number]) * step
            expected += along.view([-1 if other == number else 1 for other in range(places.ndim)])
        return torch.equal(expected, places)

    def _form(self, view: View) -> _Form:
        width = self._itemsize if view.dtype is None else view.dtype.itemsize
        block = width
        axes = [axis for axis, size in enumerate(view.shape) if size > 1]
        # From the innermost axis on.
        axes.sort(key=lambda axis: view.stride[axis])
        while axes:
            stride, size = view.stride[axes[0]], view.shape[axes[0]]
            if stride * width != block or block * size > self._finest:
                break
            block *= size
            axes.pop(0)
        return _Form(outer=tuple(sorted(axes)), block=block, width=width)


def marked(positions: Positions, length: int) -> torch.Tensor:
    """Return flags [length], True at the positions that are in range."""
    flags = torch.zeros(length, dtype=torch.bool)
    if isinstance(positions, range):
        flags[slice(max(0, positions.start), max(0, positions.stop), positions.step)] = True
    else:
        flags[[position for position in positions if 0 <= position < length]] = True
    return flags
