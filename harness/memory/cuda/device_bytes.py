"""Patterns and spans of guarded memory as runs on a GPU."""

from collections.abc import Sequence
from functools import cache

import torch

from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.harness.memory.placed import ByteSpan
from attnfuzz.harness.memory.poison import PERIOD, Pattern
from attnfuzz.kernels.gpu import guards
from attnfuzz.kernels.gpu.guards import ByteRun
from attnfuzz.kernels.transfers import Pending

_ALIGNMENT = 16


@cache
def uploaded(pattern: Pattern, device: torch.device) -> torch.Tensor:
    """A pattern's bytes on a device, once per process."""
    return torch.frombuffer(bytearray(pattern.content(PERIOD)), dtype=torch.uint8).to(device)


def filling(pattern: Pattern, address: int, nbytes: int, device: torch.device) -> ByteRun:
    """What a write needs to know to write a pattern."""
    return ByteRun(address, uploaded(pattern, device).data_ptr(), nbytes, PERIOD)


def fill(pattern: Pattern, address: int, nbytes: int, device: torch.device) -> None:
    """Write a pattern, on the current stream."""
    guards.write([filling(pattern, address, nbytes, device)])


def differences(spans: Sequence[ByteSpan], device: torch.device) -> Pending[list[tuple[int, int] | None]]:
    """As PlacedMemory says, in one launch."""
    return guards.compare([_run(span, device) for span in spans], device)


def _run(span: ByteSpan, device: torch.device) -> ByteRun:
    if isinstance(span.expected, Pattern):
        return filling(span.expected, span.address, span.nbytes, device)
    return ByteRun(span.address, span.expected.data_ptr(), span.nbytes)


class DeviceSeal:
    """A seal over `allocations` on a GPU, by a copy on the same GPU. Made on the current stream.

    What else is `to_write`, elsewhere, is written by the same launch.
    """

    def __init__(
        self, allocations: Sequence[Allocation], device: torch.device, to_write: Sequence[ByteRun] = ()
    ) -> None:
        self._allocations, self._device = allocations, device
        # Each begins where its tensor does in 16 bytes, so that both are read in the same vectors.
        offsets, end = [], 0
        for each in allocations:
            begin = end + each.address % _ALIGNMENT
            offsets.append(begin)
            end = -(-(begin + each.nbytes) // _ALIGNMENT) * _ALIGNMENT
        self._copies = torch.empty(end, dtype=torch.uint8, device=device)
        base = self._copies.data_ptr()
        self._runs = [
            ByteRun(base + offset, each.address, each.nbytes) for offset, each in zip(offsets, allocations, strict=True)
        ]
        if self._runs or to_write:
            guards.write([*to_write, *self._runs])

    def broken(self) -> Pending[list[tuple[str, int]]]:
        """As `Seal` says."""
        return guards.compare(self._runs, self._device).then(self._names)

    def _names(self, differences: list[tuple[int, int] | None]) -> list[tuple[str, int]]:
        return [
            (allocation.name, difference[0] // allocation.itemsize)
            for allocation, difference in zip(self._allocations, differences, strict=True)
            if difference is not None
        ]
