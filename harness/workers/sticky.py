"""Sticky errors, which break a CUDA context for good. A worker exits on one, with an exit code for it."""

import sys
from collections.abc import Callable

import msgspec
import torch

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.workers import gpu_core
from attnfuzz.harness.workers.worker import leave

_FIRST_EXIT_CODE = 101


class Sticky(msgspec.Struct, frozen=True):
    """An error after which, by the CUDA driver API, the process must be terminated (cuda.h, enum CUresult).

    `number` is its CUresult; `words` describe the event on the GPU.
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
"""The first stands for all other errors; 0 is no error number."""

_EXIT_CODES = {sticky.number: _FIRST_EXIT_CODE + place for place, sticky in enumerate(STICKY)}


def exit_code_of(number: int) -> int:
    """Return the exit code of a worker whose context was broken by this CUresult."""
    return _EXIT_CODES.get(number, _FIRST_EXIT_CODE)


def sticky_of(exit_code: int | None) -> Sticky | None:
    """Return the error behind a worker's exit code, or None for any other code."""
    place = -1 if exit_code is None else exit_code - _FIRST_EXIT_CODE
    return STICKY[place] if 0 <= place < len(STICKY) else None


def synchronise(before_leaving: Callable[[], None] = lambda: None) -> None:
    """Wait for the GPU. Exits this process if its context is broken; raises RuntimeError for any other error.

    The driver is asked before the exception of a library is read, which is only text. In a broken context each further
    library call takes time.
    """
    leave_if_broken(before_leaving)
    torch.cuda.synchronize()
    if gpu_core.left_here():
        # With dumps enabled, CUDA hides the error of some faults (observed with 13.0 on an H200).
        before_leaving()
        leave(exit_code_of(0))


def leave_if_broken(before_leaving: Callable[[], None] = lambda: None) -> None:
    """Wait for the GPU. Exits this process if its CUDA context is broken; returns if CUDA recovers from an error."""
    from cuda.bindings import driver  # noqa: PLC0415 - only on a GPU, where a context has been created

    (result,) = driver.cuCtxSynchronize()
    if result == driver.CUresult.CUDA_SUCCESS:
        return
    _, name = driver.cuGetErrorName(result)
    _, text = driver.cuGetErrorString(result)
    print(f"{name.decode()}: {text.decode()}", file=sys.stderr)  # noqa: T201 - the parent reads it
    before_leaving()
    # No cleanup, because freeing GPU memory would fail.
    leave(exit_code_of(int(result)))
