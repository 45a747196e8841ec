"""Drawn operations on guarded memory, and the reports due, which are equal on every device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from attnfuzz.harness.memory.allocation import dense_stride, extent
from attnfuzz.harness.memory.arena import PAGE
from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.kernels.interface.backend import Fill
from attnfuzz.reference.case import Guard
from attnfuzz.reference.dtypes import DType

Poke = Callable[[int, bytes], None]
"""Writes bytes to an address of a device."""


@dataclass(frozen=True)
class Made:
    """A tensor: a copy of numbers if `fill` is None. Bytes are then written at `strays`, offsets from its start."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: DType
    fill: Fill | None
    strays: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return extent(self.shape, self.stride) * self.dtype.itemsize


@st.composite
def scripts(draw: st.DrawFn) -> tuple[Guard, list[Made]]:
    """A side, and tensors with what becomes of them."""
    guard = draw(st.sampled_from(Guard))
    return guard, draw(st.lists(_made(guard), min_size=1, max_size=5))


@st.composite
def _made(draw: st.DrawFn, guard: Guard) -> Made:
    shape = tuple(draw(st.lists(st.integers(0, 20), max_size=3)))
    stride = list(dense_stride(shape))
    gapped = draw(st.booleans())
    if gapped:
        # Each axis is as far apart as the inner ones need, and some more.
        reach = 1
        for axis in reversed(range(len(shape))):
            stride[axis] = reach + draw(st.integers(0, 3))
            reach = stride[axis] * max(shape[axis], 1)
    dtype = draw(st.sampled_from([each for each in DType if each is not DType.FLOAT4_E2M1]))
    nbytes = extent(shape, stride) * dtype.itemsize
    # What every memory has accessible around a tensor: the rest of the host's page.
    slack = -nbytes % PAGE
    first, last = (-slack, nbytes) if guard is Guard.RIGHT else (0, nbytes + slack)
    strays = draw(st.lists(st.integers(first, last - 1), max_size=3)) if nbytes else []
    return Made(shape, tuple(stride), dtype, draw(st.sampled_from([*Fill, None])), tuple(strays))


def play(memory: PlacedMemory, script: list[Made], poke: Poke) -> list[Any]:
    """What a memory says and holds: tensors, their damage, and the seals that broke."""
    for index, made in enumerate(script):
        _make(memory, f"t{index}", made)
    # Those without elements have no address, and come last.
    placed = sorted((each for each in memory.allocations() if each.nbytes), key=lambda each: each.name)
    said: list[Any] = [(each.name, each.shape, each.stride, memory.content(each)) for each in placed]
    said.append([str(damage) for damage in memory.damage().result()])
    seal = memory.seal(memory.allocations())
    said.append(seal.broken().result())
    addresses = {each.name: each.address for each in placed}
    for index, made in enumerate(script):
        for offset in made.strays:
            poke(addresses[f"t{index}"] + offset, b"\x01")
    said += [[str(damage) for damage in memory.damage().result()], seal.broken().result()]
    said += [memory.content(each) for each in placed]
    return said


def _make(memory: PlacedMemory, name: str, made: Made) -> torch.Tensor:
    if made.fill is not None:
        return memory.tensor(name, made.shape, made.dtype.torch_dtype, stride=made.stride, fill=made.fill)
    count = extent(made.shape, dense_stride(made.shape))
    value = torch.arange(count).to(made.dtype.torch_dtype).view(made.shape)
    return memory.copy(name, value, stride=made.stride)
