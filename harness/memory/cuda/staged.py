"""Staged writes to GPU memory, which are made together when a session requests it."""

from abc import ABC
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from itertools import product

import torch

from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.harness.memory.cuda.staging import StagedWrites, chunks_of
from attnfuzz.harness.memory.placed import Content, Placed, PlacedMemory, Room, elements_of, opened_parts
from attnfuzz.harness.memory.poison import PERIOD, Pattern
from attnfuzz.harness.memory.seal import Damage
from attnfuzz.kernels.cuda import guards
from attnfuzz.kernels.interface.byte_runs import ByteRun
from attnfuzz.kernels.interface.transfers import Pending, write

_MOST_STAGED = 1 << 20
"""Size above which values are copied separately, by the GPU's copy engine."""

_MOST_ROWS = 64
"""Number of rows above which values are written into a view by torch."""


@cache
def _uploaded(pattern: Pattern, device: torch.device) -> torch.Tensor:
    """Return a pattern's bytes on a device, uploaded once per process."""
    return pattern.fill(torch.empty(PERIOD, dtype=torch.uint8)).to(device)


@cache
def _address_of(pattern: Pattern, device: torch.device) -> int:
    return _uploaded(pattern, device).data_ptr()


class StagedMemory(PlacedMemory, ABC):
    """`PlacedMemory` on a device that is written by kernels. Slack is filled with the next write or seal."""

    direct = False
    _blocks = 0
    """Number of nested `at_once` blocks around the current call."""

    @cached_property
    def _writes(self) -> StagedWrites:
        return StagedWrites(chunks_of(self._device))

    def _capturing(self) -> bool:
        return chunks_of(self._device).capturing()

    def overwrite(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """See `PlacedMemory`."""
        values, rows = values.to(tensor.dtype), _rows_of(tensor)
        if rows is None or values.shape != tensor.shape or not self._may_stage(values):
            self._writes.flush()
            write(tensor, values)
            return
        values = values.contiguous()
        source, nbytes = values.data_ptr(), values.nbytes // len(rows)
        runs = [self._writes.staged(address, source + row * nbytes, nbytes) for row, address in enumerate(rows)]
        self._writes.into(self._placed_of(tensor).allocation.address, *runs)
        self._written()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """See `Memory`. An inner block ends by itself."""
        self._blocks += 1
        try:
            yield
        finally:
            self._blocks -= 1
            self._writes.flush()

    def flush(self) -> None:
        """See `PlacedMemory`."""
        self._writes.flush()

    def content(self, allocation: Allocation) -> bytes:
        """See `PlacedMemory`."""
        self._writes.flush()
        return super().content(allocation)

    def damage(self) -> Pending[list[Damage]]:
        """See `PlacedMemory`."""
        self._writes.flush()
        return super().damage()

    def _initialise(self, placed: Placed, room: Room, content: Content) -> None:
        if content is None:
            runs = [self._filled(placed.pattern, *part) for part in opened_parts(placed.allocation, room)]
            self._writes.into(placed.allocation.address, *runs)
            self._written()
            return
        if placed.slack.nbytes:
            self._writes.around(placed.slack)
        if placed.gaps:
            self._spread(placed, content)
        elif isinstance(content, Pattern):
            self._fill(placed, content)
        else:
            self._copy(placed, content)

    def _spread(self, placed: Placed, content: Pattern | torch.Tensor) -> None:
        """Write elements with poison between them."""
        tensor, nbytes = placed.tensor, placed.allocation.nbytes
        values = elements_of(content, tensor) if isinstance(content, Pattern) else content
        if values.is_cpu and nbytes <= _MOST_STAGED and not self._capturing():
            image = placed.pattern.fill(torch.empty(nbytes // tensor.itemsize, dtype=tensor.dtype))
            image.as_strided(tensor.shape, tensor.stride()).copy_(values)
            self._stage(placed, image)
        else:
            self._write(placed.pattern, placed.allocation.address, nbytes)
            write(tensor, values)

    def _copy(self, placed: Placed, values: torch.Tensor) -> None:
        if self._may_stage(values):
            self._stage(placed, values.contiguous())
        elif values.device == self._device and not values.is_cpu:
            self._writes.flush()
            address, values = placed.allocation.address, values.contiguous()
            self._writes.into(address, ByteRun(address, self._writes.keep(values), values.nbytes))
            self._written()
        else:
            write(placed.tensor, values)

    def _stage(self, placed: Placed, values: torch.Tensor) -> None:
        """Write all bytes of a tensor."""
        address = placed.allocation.address
        self._writes.into(address, self._writes.staged(address, values.data_ptr(), values.nbytes))
        self._written()

    def _fill(self, placed: Placed, pattern: Pattern) -> None:
        address = placed.allocation.address
        if placed.gaps:
            self._writes.flush()
            super()._fill(placed, pattern)
        else:
            self._writes.into(address, self._filled(pattern, address, placed.allocation.nbytes))
            self._written()

    def _may_stage(self, values: torch.Tensor) -> bool:
        # A graph would read the staging memory again in each replay.
        return values.is_cpu and values.nbytes <= _MOST_STAGED and not self._capturing()

    def _written(self) -> None:
        """Launch the pending writes, unless more will follow."""
        if not self._blocks:
            self._writes.flush()

    def _write(self, pattern: Pattern, address: int, nbytes: int) -> None:
        self._writes.flush()
        guards.write([self._filled(pattern, address, nbytes)])

    def _filled(self, pattern: Pattern, address: int, nbytes: int) -> ByteRun:
        return ByteRun(address, _address_of(pattern, self._device), nbytes, PERIOD - 1)


def _rows_of(tensor: torch.Tensor) -> Sequence[int] | None:
    """Return the addresses of the runs of bytes that make up a tensor, in element order, or None if there are many."""
    if not tensor.numel():
        return None
    if tensor.is_contiguous():
        return (tensor.data_ptr(),)
    run, inner = 1, tensor.dim()
    while inner and (tensor.stride(inner - 1) == run or tensor.shape[inner - 1] == 1):
        inner -= 1
        run *= tensor.shape[inner]
    outer = range(inner)
    if tensor.numel() // run > _MOST_ROWS or any(tensor.stride(axis) < tensor.stride(axis + 1) for axis in outer[:-1]):
        return None
    steps = [[index * tensor.stride(axis) for index in range(tensor.shape[axis])] for axis in outer]
    return [tensor.data_ptr() + sum(offsets) * tensor.itemsize for offsets in product(*steps)]
