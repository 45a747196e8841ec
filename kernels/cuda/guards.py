"""The GPU operations of guarded memory: many runs of bytes written or compared by one launch."""

import struct
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from attnfuzz.kernels.cuda import nvcc
from attnfuzz.kernels.interface.byte_runs import ByteRun
from attnfuzz.kernels.interface.transfers import Pending, done

SOURCE = Path(__file__).with_name("guards.cu")

_ALIGNMENT = 16


def kernels() -> Any:
    """Return the functions of guards.cu, compiled at first use. Raises as `nvcc.build` does."""
    return nvcc.load(SOURCE)


def _packed(runs: Sequence[ByteRun]) -> bytes:
    """Pack the records for guards.cu."""
    return struct.pack(f"{4 * len(runs)}Q", *chain.from_iterable(runs))


def write(runs: Sequence[ByteRun]) -> None:
    """Write each run, on the current stream. Does not wait for it."""
    kernels().write(_packed(runs), stream())


def compare(
    runs: Sequence[ByteRun], device: torch.device, *, restore: bool = False
) -> Pending[list[tuple[int, int] | None]]:
    """Find the first differing byte of each run, and count its differing bytes; None for a run that is equal.

    Compares the contents after all work queued on the current stream. With `restore`, differing bytes are put back.
    """
    if not runs:
        return done([])
    on_gpu = device.type == "cuda"
    # The GPU writes to page-locked memory itself: no copy has to follow.
    results = torch.zeros((len(runs), 2), dtype=torch.int64, pin_memory=on_gpu)
    kernels().compare(_packed(runs), restore, results, stream())

    def differences() -> list[tuple[int, int] | None]:
        # Bytes from the first difference to the run's end, and number of differing bytes.
        pairs = zip(runs, results.tolist(), strict=True)
        return [(run.nbytes - left, count) if count else None for run, (left, count) in pairs]

    return Pending(current_stream().synchronize if on_gpu else lambda: None, differences)


def gather(spans: Sequence[tuple[int, int]], device: torch.device) -> tuple[Pending[torch.Tensor], list[int]]:
    """Copy spans (address, size) of a GPU's memory to the host, after all queued work, in one launch.

    Returns one tensor of bytes, and the offset of each span in it, aligned like its address in 16 bytes. The GPU's copy
    engine is faster for large spans.
    """
    offsets, end = [], 0
    for address, nbytes in spans:
        offsets.append(end + (address - end) % _ALIGNMENT)
        end = offsets[-1] + nbytes
    on_gpu = device.type == "cuda"
    copies = torch.empty(end, dtype=torch.uint8, pin_memory=on_gpu)
    start = copies.data_ptr()
    write([ByteRun(start + offset, *span) for offset, span in zip(offsets, spans, strict=True)])
    if not on_gpu:
        return done(copies), offsets
    copied = torch.cuda.Event()
    copied.record(current_stream())
    return Pending(copied.synchronize, lambda: copies), offsets


def hold(opened: int, ticket: int, patience: float) -> None:
    """Hold the current stream until the int at the page-locked address `opened` is `ticket`, or `patience` seconds."""
    kernels().hold(opened, ticket, int(patience * 1e9), stream())


def fill_shared_memory() -> None:
    """Fill the shared memory of all processors with NaN, on the current stream. Does not wait for it.

    A kernel finds there the numbers of an earlier one. It has to clear a tile that it loads in part, because NaN
    times a weight of 0 is NaN.
    """
    device = torch.cuda.current_device()
    kernels().fill_shared_memory(device, _handle(device))


def failed_launch() -> str:
    """Return and clear the error of the last failed launch; "" if there is none.

    Libraries with a statically linked CUDA runtime keep their own errors.
    """
    return str(kernels().failed_launch())


def stream() -> int:
    """Return the cudaStream_t of torch's current stream."""
    return _handle(torch.cuda.current_device())


def current_stream() -> torch.cuda.Stream:
    """Return the current stream. torch makes an object in each call, which takes longer than recording an event."""
    device = torch.cuda.current_device()
    return _stream(device, _handle(device))


def _handle(device: int) -> int:
    # As in code that torch compiles.
    handle: int = torch._C._cuda_getCurrentRawStream(device)  # noqa: SLF001
    return handle


@cache
def _stream(device: int, handle: int) -> torch.cuda.Stream:
    """Return the current stream, whose handle this is."""
    del handle
    return torch.cuda.current_stream(device)
