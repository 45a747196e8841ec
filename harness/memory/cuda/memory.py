"""Guarded memory for one case on a GPU."""

from collections.abc import Sequence

import torch

from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.harness.memory.cuda import device_bytes
from attnfuzz.harness.memory.cuda.arena import CudaArena, CudaSlab
from attnfuzz.harness.memory.cuda.device_bytes import DeviceSeal
from attnfuzz.harness.memory.placed import ByteSpan, Placed, PlacedMemory, Room
from attnfuzz.harness.memory.poison import Pattern
from attnfuzz.harness.memory.seal import Seal
from attnfuzz.kernels.gpu import guards
from attnfuzz.kernels.gpu.guards import ByteRun
from attnfuzz.kernels.transfers import Pending
from attnfuzz.reference.case import Guard, Outputs


class CudaMemory(PlacedMemory):
    """`PlacedMemory` in an arena's slabs, whose slack is what a tensor leaves of them: up to 2 MiB for a small one.

    `content` synchronises. A tensor's memory serves others only when nobody holds its storage any more, be it torch, a
    graph or FlashInfer, also after `release`. What is around tensors is filled when the next launch is sealed, all at
    once: processes share a GPU in slices of time, and each small kernel may wait for one.
    """

    def __init__(self, arena: CudaArena, guard: Guard, outputs: Outputs) -> None:
        super().__init__(arena.device, guard, outputs)
        self._arena = arena
        self._unfilled: list[ByteRun] = []

    def content(self, allocation: Allocation) -> bytes:
        """What a tensor and its gaps hold now, after all launches so far."""
        if not allocation.nbytes:
            return b""
        tensor = self._by_address[allocation.address].tensor
        flat = tensor.as_strided((allocation.nbytes // allocation.itemsize,), (1,)).view(torch.uint8)
        return flat.cpu().numpy().tobytes()

    def _room(self, elements: int, dtype: torch.dtype) -> Room:
        nbytes = elements * dtype.itemsize
        slab = self._arena.take(nbytes)
        offset = slab.capacity - nbytes if self._guard is Guard.RIGHT else 0
        flat = self._arena.bytes_in(slab, offset, nbytes).view(dtype)
        return Room(flat, slab.address, slab.capacity, slab)

    def _give(self, slabs: list[CudaSlab]) -> None:
        del slabs
        self._unfilled.clear()
        self._arena.settle()

    def _poison(self, placed: Placed, room: Room, *, own: bool) -> None:
        if own:
            super()._poison(placed, room, own=own)
        elif placed.slack_bytes:
            slack = device_bytes.filling(placed.pattern, placed.slack_address, placed.slack_bytes, self._device)
            self._unfilled.append(slack)

    def _write(self, pattern: Pattern, address: int, nbytes: int) -> None:
        device_bytes.fill(pattern, address, nbytes, self._device)

    def _differences(self, spans: Sequence[ByteSpan]) -> Pending[list[tuple[int, int] | None]]:
        if self._unfilled:
            guards.write(self._unfilled)
            self._unfilled.clear()
        return device_bytes.differences(spans, self._device)

    def _sealed(self, allocations: Sequence[Allocation]) -> Seal:
        seal = DeviceSeal(allocations, self._device, self._unfilled)
        self._unfilled.clear()
        return seal
