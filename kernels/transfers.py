"""Copies between the host and a device for which nobody waits before the result is needed.

Processes share a GPU in slices of time, so that each wait may last until all others had theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

STAYS = 16 << 20
"""Bytes of a step's keys and values from which on they are drawn on the device that needs them, and stay there."""

_MOST_LOCKED = 64 << 20
"""Bytes of a copy through page-locked memory, at most: torch never gives that back to the system, and what is larger
takes longer than a wait.
"""

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class Pending(Generic[T]):
    """What a device has still to give. `wait` returns when it is there, and `read` takes it then."""

    wait: Callable[[], object]
    read: Callable[[], T]

    def result(self) -> T:
        """The result, after a wait if the device was not waited for since."""
        self.wait()
        return self.read()

    def then(self, change: Callable[[T], U]) -> "Pending[U]":
        """What `change` makes of the result."""
        return Pending(self.wait, lambda: change(self.read()))


def done(value: T) -> Pending[T]:
    """A result that is there."""
    return Pending(lambda: None, lambda: value)


def write(target: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Write values from any device into `target`, after what is queued there so far; gives the target."""
    # Torch would cast on the host, into memory that a GPU can't fetch from.
    return target.copy_(_staged(values.to(target.dtype), target.device), non_blocking=True)


def to_device(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The values on `device`, for what is queued there from now on."""
    return _staged(value, device).to(device, non_blocking=True)


def to_host(value: torch.Tensor) -> Pending[torch.Tensor]:
    """A copy in the host's memory of what a dense tensor holds after all that was queued so far."""
    copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda and value.nbytes <= _MOST_LOCKED)
    copy.copy_(value, non_blocking=True)
    if not value.is_cuda:
        return done(copy)
    copied = torch.cuda.Event()
    copied.record()
    return Pending(copied.synchronize, lambda: copy)


def _staged(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The values where `device` can fetch them from by itself: for copies with non_blocking=True.

    A GPU does so from page-locked memory alone. Torch keeps that as long as a copy from it is under way, and takes it
    for others afterwards (CachingHostAllocator).
    """
    if value.is_cpu and device.type == "cuda" and value.nbytes <= _MOST_LOCKED:
        return value.contiguous().pin_memory()
    return value
