"""Asynchronous copies between the host and a device: waits are deferred until a result is needed.

Processes share a GPU in time slices, so each wait may last until all others have had their slice.
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch

STAYS = 16 << 20
"""Size in bytes above which a step's keys and values are drawn on the device that needs them, and stay there."""

_MOST_LOCKED = 64 << 20
"""Maximum size of a copy through page-locked memory, in bytes. Torch never returns that memory to the system, and a
larger copy takes longer than a wait.
"""

T = TypeVar("T")
U = TypeVar("U")


class Pending(NamedTuple, Generic[T]):
    """A result that a device still has to deliver. `wait` blocks until it is ready; then `read` returns it."""

    wait: Callable[[], object]
    read: Callable[[], T]

    def result(self) -> T:
        """Wait if necessary, and return the result."""
        self.wait()
        return self.read()

    def then(self, change: Callable[[T], U]) -> "Pending[U]":
        """Return the result with `change` applied to it, once it is ready."""
        return Pending(self.wait, lambda: change(self.read()))


def done(value: T) -> Pending[T]:
    """Return a result that is ready."""
    return Pending(lambda: None, lambda: value)


def write(target: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Write values from any device into `target`, after the work queued there. Returns the target."""
    if target.is_cpu and values.is_cpu:
        return target.copy_(values)
    # Torch would cast on the host, into memory that a GPU can't copy asynchronously.
    return target.copy_(_staged(values.to(target.dtype), target.device), non_blocking=True)


def to_device(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the values on `device`, for work that is queued there later."""
    return value if value.device == device else _staged(value, device).to(device, non_blocking=True)


def to_host(value: torch.Tensor) -> Pending[torch.Tensor]:
    """Copy a dense tensor to the host, after all work queued so far."""
    copy = torch.empty(value.shape, dtype=value.dtype, pin_memory=value.is_cuda and value.nbytes <= _MOST_LOCKED)
    copy.copy_(value, non_blocking=True)
    if not value.is_cuda:
        return done(copy)
    copied = torch.cuda.Event()
    copied.record()
    return Pending(copied.synchronize, lambda: copy)


def _staged(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the values in memory from which `device` can copy them asynchronously (non_blocking=True).

    A GPU needs page-locked memory. Torch keeps it while a copy from it is in progress, and reuses it afterwards
    (CachingHostAllocator).
    """
    if value.is_cpu and device.type == "cuda" and value.nbytes <= _MOST_LOCKED:
        return value.contiguous().pin_memory()
    return value
