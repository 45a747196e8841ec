"""Guarded memory for one case on a GPU, and memory without guards for benchmarks."""

from collections.abc import Sequence
from functools import partial

import torch

from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.harness.memory.cuda.arena import CudaArena, CudaSlab
from attnfuzz.harness.memory.cuda.staged import StagedMemory
from attnfuzz.harness.memory.guarded import PlainMemory
from attnfuzz.harness.memory.placed import Content, Placed, Room
from attnfuzz.harness.memory.poison import Pattern
from attnfuzz.harness.memory.seal import Difference, Seal
from attnfuzz.kernels.cuda import guards
from attnfuzz.kernels.interface.backend import Fill
from attnfuzz.kernels.interface.byte_runs import ByteRun
from attnfuzz.kernels.interface.transfers import Pending
from attnfuzz.reference.case import Guard, Outputs

_ALIGNMENT = 16


class CudaMemory(StagedMemory):
    """`PlacedMemory` in an arena's slabs; a small tensor leaves up to 2 MiB of slack.

    A tensor's memory is reused only when torch, graphs and FlashInfer have all released its storage, even after
    `release`.
    """

    def __init__(self, arena: CudaArena, guard: Guard, outputs: Outputs) -> None:
        super().__init__(arena.device, guard, outputs)
        self._arena = arena

    def _room(self, elements: int, dtype: torch.dtype, hole: range) -> Room:
        nbytes = elements * dtype.itemsize
        return (self._hollow(nbytes, dtype, hole) if hole else None) or self._whole(nbytes, dtype)

    def _whole(self, nbytes: int, dtype: torch.dtype) -> Room:
        slab = self._arena.take(nbytes)
        flat = self._arena.bytes_in(slab, self._offset(nbytes, slab.capacity), nbytes).view(dtype)
        return Room(flat, slab.address, slab.capacity, slab)

    def _hollow(self, nbytes: int, dtype: torch.dtype, hole: range) -> Room | None:
        """Allocate room around the pages that lie whole in a hole, or return None if there are none."""
        page = self._arena.page
        # Few sizes: the addresses of each slab are kept.
        capacity = 1 << (nbytes - 1).bit_length()
        offset = self._offset(nbytes, capacity)
        start, end = offset // page * page, -(-(offset + nbytes) // page) * page
        first, last = -(-(offset + hole.start) // page) * page, (offset + hole.stop) // page * page
        if first >= last:
            return None
        slab = self._arena.take_around(capacity, (start, first - start), (last, end - last))
        flat = self._arena.bytes_in(slab, offset, nbytes).view(dtype)
        return Room(flat, slab.address + start, end - start, slab, (first - offset, last - offset))

    def _offset(self, nbytes: int, capacity: int) -> int:
        """Return the offset of a tensor in its slab: flush with the guard."""
        return capacity - nbytes if self._guard is Guard.RIGHT else 0

    def _give(self, slabs: list[CudaSlab]) -> None:
        del slabs
        self._writes.drop()
        self._arena.settle()

    def _differences(self, runs: Sequence[ByteRun]) -> Pending[list[Difference]]:
        return guards.compare(runs, self._device)

    def _sealed(self, allocations: Sequence[Allocation]) -> Seal:
        """Return a seal by copies on the same GPU, made on the current stream in one launch with pending fills."""
        # Copies have the same alignment within 16 bytes as their tensors, so both are read in the same vectors.
        begins, end = [], 0
        parts = [part for each in allocations for part in each.parts]
        for address, nbytes in parts:
            begin = end + address % _ALIGNMENT
            begins.append(begin)
            end = -(-(begin + nbytes) // _ALIGNMENT) * _ALIGNMENT
        copies = torch.empty(end, dtype=torch.uint8, device=self._device)
        start = copies.data_ptr()
        runs = [ByteRun(address, start + at, nbytes) for (address, nbytes), at in zip(parts, begins, strict=True)]
        self._writes.flush(more=[ByteRun(copy, address, nbytes) for address, copy, nbytes, _ in runs])
        return Seal(allocations, partial(self._restored, allocations, runs, copies))

    def _restored(
        self, allocations: Sequence[Allocation], runs: Sequence[ByteRun], copies: torch.Tensor
    ) -> Pending[list[Difference]]:
        # The caller's reference to the copies keeps them alive.
        del copies
        found = guards.compare(runs, self._device, restore=True)
        return found if len(runs) == len(allocations) else found.then(partial(_by_allocation, allocations))


def _by_allocation(allocations: Sequence[Allocation], differences: Sequence[Difference]) -> list[Difference]:
    """Return one difference for each allocation, from those of all parts."""
    left = iter(differences)
    merged: list[Difference] = []
    for each in allocations:
        own = [(address, found) for (address, _), found in zip(each.parts, left, strict=False) if found is not None]
        offsets = [address - each.address + first for address, (first, _) in own]
        merged.append((offsets[0], sum(count for _, (_, count) in own)) if own else None)
    return merged


class PlainCudaMemory(StagedMemory, PlainMemory):
    """Tensors on `device` with the fills of guarded memory. Detects no damage."""

    def _give(self, slabs: list[None]) -> None:
        del slabs
        self._writes.drop()


class UnwrittenCudaMemory(PlainCudaMemory):
    """Tensors whose poison and sentinels are not written, for a tool that finds reads of unwritten memory."""

    def renew(self, tensor: torch.Tensor) -> None:
        """Leave an output as it is."""

    def _initialise(self, placed: Placed, room: Room, content: Content) -> None:
        if content is not None:
            super()._initialise(placed, room, content)

    def _pattern(self, fill: Fill, dtype: torch.dtype) -> Pattern | None:
        return super()._pattern(fill, dtype) if fill is Fill.ZEROS else None
