"""Host memory for one case: guarded, or without guards for benchmarks."""

import ctypes
from collections.abc import Iterable, Sequence

import torch

from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.harness.memory.arena import PAGE, Arena, Slab
from attnfuzz.harness.memory.placed import Placed, PlacedMemory, Room
from attnfuzz.harness.memory.poison import Pattern, sentinel
from attnfuzz.harness.memory.seal import Damage, Difference, Seal, differ, difference
from attnfuzz.harness.memory.slabs import NoAddresses, OutOfMemory
from attnfuzz.kernels.interface.byte_runs import ByteRun
from attnfuzz.kernels.interface.transfers import Pending, done
from attnfuzz.reference.case import Guard, Outputs


class GuardedMemory(PlacedMemory):
    """`PlacedMemory` in an arena's pages: exactly those of tensors are accessible."""

    def __init__(self, arena: Arena, guard: Guard, outputs: Outputs) -> None:
        super().__init__(torch.device("cpu"), guard, outputs)
        self._arena = arena

    def damage(self) -> Pending[list[Damage]]:
        """Return the overwritten bytes around and between elements."""
        # Usually there is no damage, and a case has about a hundred tensors to check.
        return super().damage() if any(map(self._is_damaged, self._placed)) else done([])

    def _is_damaged(self, placed: Placed) -> bool:
        if differ(*placed.slack[:3]):
            return True
        return placed.gaps and differ(*self._between(placed)[:3])

    def _room(self, elements: int, dtype: torch.dtype, hole: range) -> Room:
        nbytes = elements * dtype.itemsize
        # Relative to the tensor, which begins or ends at a page boundary.
        end_of_page = -nbytes % PAGE if self._guard is Guard.RIGHT else 0
        first, end = -(-(hole.start + end_of_page) // PAGE) * PAGE, (hole.stop + end_of_page) // PAGE * PAGE
        closed = (first - end_of_page, end - end_of_page) if first < end else (0, 0)
        slab = self._take(nbytes, closed)
        offset = slab.capacity - nbytes if self._guard is Guard.RIGHT else 0
        # Exactly the tensor's bytes, because copying its storage must not touch an inaccessible page.
        flat = torch.frombuffer(slab.buffer, dtype=dtype, count=elements, offset=offset)
        return Room(flat, slab.start, slab.opened, slab, closed)

    def _take(self, nbytes: int, closed: tuple[int, int]) -> Slab:
        try:
            return self._arena.take(nbytes, self._guard, closed)
        except OutOfMemory as error:
            if any(closed):
                raise NoAddresses(str(error)) from error
            raise

    def _give(self, slabs: list[Slab]) -> None:
        for slab in slabs:
            self._arena.give(slab)

    def _write(self, pattern: Pattern, address: int, nbytes: int) -> None:
        pattern.write(address, nbytes)

    def _differences(self, runs: Sequence[ByteRun]) -> Pending[list[Difference]]:
        return done([difference(run.address, run.other, run.nbytes) for run in runs])

    def _sealed(self, allocations: Sequence[Allocation]) -> Seal:
        copies = [[ctypes.string_at(*part) for part in each.parts] for each in allocations]
        return Seal(allocations, lambda: done(list(map(_restored, allocations, copies))))


class PlainMemory(PlacedMemory):
    """Ordinary torch tensors with the fills of guarded memory, so that cases compute the same. Detects no damage."""

    def __init__(self, outputs: Outputs, device: torch.device | None = None) -> None:
        super().__init__(torch.device("cpu") if device is None else device, Guard.RIGHT, outputs)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return True: any memory is accepted."""
        del tensor
        return True

    def on_record(self, arguments: Iterable[tuple[str, torch.Tensor]]) -> list[Allocation]:
        """Return an empty list, however many arguments there are: nothing is recorded."""
        del arguments
        return []

    def renew(self, tensor: torch.Tensor) -> None:
        """Restore the sentinel as in guarded memory, for any tensor without gaps."""
        if self._output_pattern is sentinel:
            self._write(sentinel(tensor.dtype), tensor.data_ptr(), tensor.nbytes)

    def _room(self, elements: int, dtype: torch.dtype, hole: range) -> Room:
        flat = torch.empty(elements, dtype=dtype, device=self._device)
        # Pages of the hole that are never written take no memory.
        return Room(flat, flat.data_ptr(), flat.nbytes, None, (hole.start, hole.stop))

    def _give(self, slabs: list[None]) -> None:
        """Do nothing: torch frees the tensors."""

    def _write(self, pattern: Pattern, address: int, nbytes: int) -> None:
        pattern.write(address, nbytes)

    def _differences(self, runs: Sequence[ByteRun]) -> Pending[list[Difference]]:
        return done([None for _ in runs])

    def _sealed(self, allocations: Sequence[Allocation]) -> Seal:
        return Seal(allocations, lambda: done([]))


def _restored(allocation: Allocation, contents: Sequence[bytes]) -> Difference:
    """Return the difference from the contents of an allocation's parts, which are restored."""
    first, count = None, 0
    for (address, nbytes), content in zip(allocation.parts, contents, strict=True):
        found = difference(address, content, nbytes)
        if found is not None:
            ctypes.memmove(address, content, nbytes)
            first = address - allocation.address + found[0] if first is None else first
            count += found[1]
    return None if first is None else (first, count)
