"""Placing a release's tensors in guarded memory for a launch, so that an access past a tensor's own end faults."""

from collections.abc import Sequence
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Fill, Memory

WITH_POISON = frozenset(
    {torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int32, torch.int64, torch.uint8}
)
"""Dtypes with a poison value in memory. Arguments of others are placed as bits, and their factories left alone."""


class Placement:
    """The arguments of one launch.

    Tensors in guarded memory stay in place, since others may view the same bytes, and so do tensors on the host in a
    launch on a GPU. Any other tensor gets a place of its own with the same values and strides. `load` copies the values
    there, and `store` copies the kernel's writes back; both may run many times, as a graph is replayed.
    """

    def __init__(self, memory: Memory, device: torch.device) -> None:
        self._memory, self._device = memory, device
        self._placed: dict[tuple[object, ...], tuple[torch.Tensor, torch.Tensor]] = {}
        self._written: dict[tuple[object, ...], tuple[torch.Tensor, torch.Tensor]] = {}
        self._results: list[torch.Tensor] = []

    def argument(self, name: str, value: Any, *, written: bool = False) -> Any:
        """Place an argument in guarded memory: a tensor, or those in a tuple or list."""
        if isinstance(value, torch.Tensor):
            return self._tensor(name, value, written=written)
        if isinstance(value, tuple | list):
            return type(value)(self.argument(name, item, written=written) for item in value)
        return value

    def result(self, name: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Allocate a tensor that the kernel writes, without previous contents."""
        made = self._memory.tensor(name, shape, dtype, fill=Fill.OUTPUT)
        self._results.append(made)
        return made

    def renew(self) -> None:
        """Restore the initial contents of results."""
        for result in self._results:
            self._memory.renew(result)

    def load(self) -> None:
        """Copy the values of placed arguments to the places where the kernel reads them."""
        for source, target in self._placed.values():
            _copy(target, source)

    def store(self) -> None:
        """Copy possible writes of the kernel to the release's own tensors."""
        for source, target in self._written.values():
            _copy(source, target)

    def _tensor(self, name: str, tensor: torch.Tensor, *, written: bool) -> torch.Tensor:
        if not tensor.numel() or tensor.device.type != self._device.type or self._memory.holds(tensor):
            return tensor
        # One tensor that is passed as several arguments stays one.
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if key not in self._placed:
            self._placed[key] = (tensor, self._place(name, tensor))
        if written:
            self._written[key] = self._placed[key]
        return self._placed[key][1]

    def _place(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Allocate a tensor of the same shape and strides. An expanded axis has one place for all of its indices."""
        expanded = _expanded(tensor)
        shape = [1 if axis in expanded else size for axis, size in enumerate(tensor.shape)]
        stride = [
            1 if axis in expanded or tensor.shape[axis] == 1 else step for axis, step in enumerate(tensor.stride())
        ]
        dtype = tensor.dtype if tensor.dtype in WITH_POISON else _BITS[tensor.itemsize]
        placed = self._memory.tensor(name, shape, dtype, stride=stride).view(tensor.dtype)
        return placed.expand(tensor.shape) if expanded else placed.as_strided(tensor.shape, tensor.stride())


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy bits, NaN payloads included; an expanded axis is copied once."""
    for axis in _expanded(target):
        target, source = target.narrow(axis, 0, 1), source.narrow(axis, 0, 1)
    bits = _BITS[target.itemsize]
    target.view(bits).copy_(source.view(bits))


def _expanded(tensor: torch.Tensor) -> list[int]:
    return [axis for axis, size in enumerate(tensor.shape) if size > 1 and tensor.stride(axis) == 0]


_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.int32, 8: torch.int64}
