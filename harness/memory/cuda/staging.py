"""Batched writes to a GPU's memory: their values are in page-locked memory, and one launch makes all of them.

Processes share a GPU in time slices, and each small kernel or copy may have to wait for one.
"""

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

from attnfuzz.kernels.cuda import guards
from attnfuzz.kernels.interface.byte_runs import ByteRun

CHUNK = 4 << 20
"""Size of a chunk of page-locked memory. One write stages less than this, by at least the alignment."""

_ALIGNMENT = 16


class Chunks:
    """Page-locked memory from which `device` reads, in chunks that are reused once it has read them."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._free: list[tuple[torch.Tensor, torch.cuda.Event | None]] = []

    def take(self) -> torch.Tensor:
        """Return a chunk of CHUNK bytes that no queued work reads."""
        # The latest first, because it is in the host's caches.
        for index in reversed(range(len(self._free))):
            chunk, read = self._free[index]
            if read is None or read.query():
                del self._free[index]
                return chunk
        return torch.empty(CHUNK, dtype=torch.uint8, pin_memory=self._on_gpu)

    def give(self, chunks: list[torch.Tensor]) -> None:
        """Return chunks that work queued so far may read."""
        if not chunks:
            return
        read = None
        if self._on_gpu:
            read = torch.cuda.Event()
            read.record(guards.current_stream())
        self._free += [(chunk, read) for chunk in chunks]

    def capturing(self) -> bool:
        """Return whether work is queued for a graph, which repeats it in each replay."""
        return self._on_gpu and torch.cuda.is_current_stream_capturing()


@cache
def chunks_of(device: torch.device) -> Chunks:
    """Return the chunks of this process."""
    return Chunks(device)


class StagedWrites:
    """Writes that are pending until `flush`, which makes them in any order.

    Sources are patterns, host values, which are copied at once, and values on the device, which are kept alive.
    """

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._into: list[ByteRun] = []
        self._around: list[ByteRun] = []
        self._spans: dict[int, list[tuple[int, int]]] = {}
        self._kept: list[torch.Tensor] = []
        self._used: list[torch.Tensor] = []
        self._end = CHUNK

    @property
    def pending(self) -> bool:
        """Whether a write into a tensor is pending."""
        return bool(self._into)

    def around(self, run: ByteRun) -> None:
        """Add a write to bytes that belong to no tensor. It waits for other writes, or a seal."""
        self._around.append(run)

    def into(self, target: int, *runs: ByteRun) -> None:
        """Add writes into the tensor at the address `target`, after those pending for the same bytes.

        They are in ascending order, and don't overlap.
        """
        first, end = runs[0].address, runs[-1].address + runs[-1].nbytes
        if any(begin < end and first < last for begin, last in self._spans.get(target, ())):
            self.flush()
        self._spans.setdefault(target, []).append((first, end))
        self._into += runs

    def staged(self, address: int, source: int, nbytes: int) -> ByteRun:
        """Return the run that writes `nbytes` of host memory at `source` to a device's address."""
        # Both have the same alignment, so they are read in the same vectors.
        begin = -(-self._end // _ALIGNMENT) * _ALIGNMENT + address % _ALIGNMENT
        if begin + nbytes > CHUNK:
            self._used.append(self._chunks.take())
            begin = address % _ALIGNMENT
        self._end = begin + nbytes
        place = self._used[-1].data_ptr() + begin
        ctypes.memmove(place, source, nbytes)
        return ByteRun(address, place, nbytes)

    def keep(self, values: torch.Tensor) -> int:
        """Return the address of values on the device, which are kept alive until they are read."""
        self._kept.append(values)
        return values.data_ptr()

    def flush(self, *, more: Sequence[ByteRun] = ()) -> None:
        """Launch the pending writes on the current stream, with `more` that overlap none of those around tensors."""
        if more and self._into:
            self.flush()
        runs, self._into = [*self._into, *more], []
        self._spans.clear()
        # A graph would make them in each replay, and only then.
        if not (self._around and self._chunks.capturing()):
            runs += self._around
            self._around = []
        if runs:
            guards.write(runs)
        # Torch's allocator reuses memory for work that is queued later on the same stream.
        self._kept.clear()

    def drop(self) -> None:
        """Discard the pending writes, and return the staging memory."""
        for pending in (self._into, self._around, self._spans, self._kept):
            pending.clear()
        self._chunks.give(self._used)
        self._used, self._end = [], CHUNK
