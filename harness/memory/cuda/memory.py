"""Guarded memory for one case on a GPU, and memory without guards for benchmarks."""

from collections.abc import Sequence

import torch

from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.harness.memory.cuda.arena import CudaArena, CudaSlab
from attnfuzz.harness.memory.cuda.staged import StagedMemory
from attnfuzz.harness.memory.guarded import PlainMemory
from attnfuzz.harness.memory.placed import Room
from attnfuzz.harness.memory.seal import Difference, Seal
from attnfuzz.kernels.byte_runs import ByteRun
from attnfuzz.kernels.gpu import guards
from attnfuzz.kernels.transfers import Pending
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
        slab = self._arena.take(nbytes)
        offset = slab.capacity - nbytes if self._guard is Guard.RIGHT else 0
        flat = self._arena.bytes_in(slab, offset, nbytes).view(dtype)
        return Room(flat, slab.address, slab.capacity, slab)

    def _give(self, slabs: list[CudaSlab]) -> None:
        del slabs
        self._writes.drop()
        self._arena.settle()

    def _differences(self, runs: Sequence[ByteRun]) -> Pending[list[Difference]]:
        return guards.compare(runs, self._device)

    def _sealed(self, allocations: Sequence[Allocation]) -> Seal:
        """Return a seal by copies on the same GPU, made on the current stream in one launch with pending fills."""
        # Copies have the same alignment within 16 bytes as their tensors, so both are read in the same vectors.
        offsets, end = [], 0
        for each in allocations:
            begin = end + each.address % _ALIGNMENT
            offsets.append(begin)
            end = -(-(begin + each.nbytes) // _ALIGNMENT) * _ALIGNMENT
        copies = torch.empty(end, dtype=torch.uint8, device=self._device)

        placed = list(zip(allocations, offsets, strict=True))
        copied = (ByteRun(copies.data_ptr() + offset, each.address, each.nbytes) for each, offset in placed)
        self._writes.flush(more=tuple(copied))

        def compare() -> Pending[list[Difference]]:
            # This closure keeps the copies alive.
            runs = [ByteRun(each.address, copies.data_ptr() + offset, each.nbytes) for each, offset in placed]
            return guards.compare(runs, self._device, restore=True)

        return Seal(allocations, compare)


class PlainCudaMemory(StagedMemory, PlainMemory):
    """Tensors on `device` with the fills of guarded memory. Detects no damage."""

    def _give(self, slabs: list[None]) -> None:
        del slabs
        self._writes.drop()
