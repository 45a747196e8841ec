"""Guarded memory for one case on a GPU, and memory without guards for benchmarks."""

from collections.abc import Sequence
from functools import partial

import torch

from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.harness.memory.cuda.arena import CudaArena, CudaSlab
from attnfuzz.harness.memory.cuda.staged import StagedMemory
from attnfuzz.harness.memory.guarded import PlainMemory
from attnfuzz.harness.memory.placed import Room
from attnfuzz.harness.memory.seal import Difference, Seal
from attnfuzz.kernels.cuda import guards
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
        begins, end = [], 0
        for each in allocations:
            begin = end + each.address % _ALIGNMENT
            begins.append(begin)
            end = -(-(begin + each.nbytes) // _ALIGNMENT) * _ALIGNMENT
        copies = torch.empty(end, dtype=torch.uint8, device=self._device)
        start = copies.data_ptr()
        runs = [ByteRun(each.address, start + at, each.nbytes) for each, at in zip(allocations, begins, strict=True)]
        self._writes.flush(more=[ByteRun(copy, address, nbytes) for address, copy, nbytes, _ in runs])
        return Seal(allocations, partial(self._restored, runs, copies))

    def _restored(self, runs: Sequence[ByteRun], copies: torch.Tensor) -> Pending[list[Difference]]:
        # The caller's reference to the copies keeps them alive.
        del copies
        return guards.compare(runs, self._device, restore=True)


class PlainCudaMemory(StagedMemory, PlainMemory):
    """Tensors on `device` with the fills of guarded memory. Detects no damage."""

    def _give(self, slabs: list[None]) -> None:
        del slabs
        self._writes.drop()
