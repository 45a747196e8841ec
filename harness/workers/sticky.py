"""Errors that break a CUDA context for good: a worker that meets one leaves, and its exit code says which it was."""

import sys
from collections.abc import Callable

import msgspec
import torch

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.workers import gpu_core
from attnfuzz.harness.workers.worker import leave

_FIRST_EXIT_CODE = 101


class Sticky(msgspec.Struct, frozen=True):
    """An error of which the CUDA driver API says that the process must be terminated (cuda.h, enum CUresult).

    `number` is its CUresult; `words` say what happened on the GPU.
    """

    number: int
    kind: Kind
    words: str

    def __str__(self) -> str:
        return f"{self.words} on the GPU (CUDA error {self.number})" if self.number else self.words


STICKY = (
    Sticky(0, Kind.WORKER_DIED, "an error on the GPU that CUDA does not recover from"),
    Sticky(700, Kind.ILLEGAL_ACCESS, "illegal memory access"),
    Sticky(716, Kind.MISALIGNED, "misaligned address"),
    Sticky(717, Kind.ILLEGAL_ACCESS, "access in the wrong address space"),
    Sticky(719, Kind.WORKER_DIED, "launch failure"),
    Sticky(710, Kind.WORKER_DIED, "failed device-side assertion"),
    Sticky(715, Kind.WORKER_DIED, "illegal instruction"),
    Sticky(718, Kind.WORKER_DIED, "invalid program counter"),
    Sticky(714, Kind.WORKER_DIED, "hardware stack error"),
    Sticky(721, Kind.WORKER_DIED, "leaked tensor memory"),
    Sticky(702, Kind.HANG, "launch timeout"),
    Sticky(214, Kind.WORKER_DIED, "uncorrectable ECC error"),
    Sticky(220, Kind.WORKER_DIED, "uncorrectable NVLink error"),
    Sticky(226, Kind.WORKER_DIED, "contained memory error"),
)
"""The first stands for errors that are none of the others; its number is no error's."""

_EXIT_CODES = {sticky.number: _FIRST_EXIT_CODE + place for place, sticky in enumerate(STICKY)}


def exit_code_of(number: int) -> int:
    """What a worker whose context is broken by this CUresult leaves with."""
    return _EXIT_CODES.get(number, _FIRST_EXIT_CODE)


def sticky_of(exit_code: int | None) -> Sticky | None:
    """The error that a worker left for; None for an exit code that means something else."""
    place = -1 if exit_code is None else exit_code - _FIRST_EXIT_CODE
    return STICKY[place] if 0 <= place < len(STICKY) else None


def synchronise(before_leaving: Callable[[], None] = lambda: None) -> None:
    """Wait for the GPU. Ends this process if its context is broken, and raises RuntimeError for any other error.

    The driver is asked first, and not the exception that tells of an error: what libraries make of one is text. And in
    a broken context each further call of theirs takes its time.
    """
    leave_if_broken(before_leaving)
    torch.cuda.synchronize()
    if gpu_core.left_here():
        # With dumps switched on CUDA tells no error of some faults (seen of 13.0, on an H200).
        before_leaving()
        leave(exit_code_of(0))


def leave_if_broken(before_leaving: Callable[[], None] = lambda: None) -> None:
    """Wait for the GPU, and end this process if its CUDA context is broken. Returns if CUDA recovers from an error."""
    from cuda.bindings import driver  # noqa: PLC0415 - only on a GPU, where a context has been created

    (result,) = driver.cuCtxSynchronize()
    if result == driver.CUresult.CUDA_SUCCESS:
        return
    _, name = driver.cuGetErrorName(result)
    _, text = driver.cuGetErrorString(result)
    print(f"{name.decode()}: {text.decode()}", file=sys.stderr)  # noqa: T201 - the parent reads it
    before_leaving()
    # Nothing is put in order: whatever still holds memory of the GPU would fail to free it.
    leave(exit_code_of(int(result)))
