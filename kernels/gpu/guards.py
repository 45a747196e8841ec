"""What guarded memory does on a GPU: many runs of bytes written or compared by one launch."""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from attnfuzz.kernels.gpu import nvcc
from attnfuzz.kernels.transfers import Pending, done

SOURCE = Path(__file__).with_name("guards.cu")

_PLAIN = (1 << 64) - 1
_RECORD = struct.Struct("4Q")


class ByteRun(NamedTuple):
    """`nbytes` of a GPU's memory from `address` on, and what they are written or compared with.

    That is the memory from `other` on, or with a `period` (a power of two) a pattern of so many bytes that is repeated,
    beginning at the last multiple of 16 that is not behind `address`. Fastest where both are aligned alike in 16 bytes.
    """

    address: int
    other: int
    nbytes: int
    period: int = 0

    def packed(self) -> bytes:
        """As guards.cu takes it."""
        return _RECORD.pack(self.address, self.other, self.nbytes, self.period - 1 if self.period else _PLAIN)


def kernels() -> Any:
    """The functions of guards.cu, compiled at first use. Raises as `nvcc.build` does."""
    return nvcc.load(SOURCE)


def write(runs: Iterable[ByteRun]) -> None:
    """Write each run, on the current stream. Does not wait for it."""
    kernels().write(b"".join(run.packed() for run in runs), stream())


def compare(runs: Sequence[ByteRun], device: torch.device) -> Pending[list[tuple[int, int] | None]]:
    """For each run, the offset of the first byte that differs and how many do; None if none does.

    What counts is what the runs hold after all that is on the current stream so far.
    """
    if not runs:
        return done([])
    on_gpu = device.type == "cuda"
    # The GPU writes there by itself, if there is anything to write: no copy has to follow.
    results = torch.zeros((len(runs), 2), dtype=torch.int64, pin_memory=on_gpu)
    kernels().compare(b"".join(run.packed() for run in runs), results, stream())

    def differences() -> list[tuple[int, int] | None]:
        # What is left of a run from its first difference on, and how many bytes differ.
        pairs = zip(runs, results.tolist(), strict=True)
        return [(run.nbytes - left, count) if count else None for run, (left, count) in pairs]

    return Pending(torch.cuda.current_stream(device).synchronize if on_gpu else lambda: None, differences)


def hold(opened: int, ticket: int, patience: float) -> None:
    """Hold the current stream until the int at the page-locked address `opened` is `ticket`, or `patience` seconds."""
    kernels().hold(opened, ticket, int(patience * 1e9), stream())


def failed_launch() -> str:
    """The error of the last launch that failed and was not asked for since, which is forgotten; "" if there is none.

    Libraries whose CUDA runtime is linked into them keep theirs to themselves.
    """
    return str(kernels().failed_launch())


def stream() -> int:
    """The cudaStream_t of torch's current stream."""
    # As code that torch compiles asks for it: torch.cuda.current_stream() makes an object, which takes longer.
    handle: int = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())  # noqa: SLF001
    return handle
