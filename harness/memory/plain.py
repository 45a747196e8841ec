"""Memory without guards, behind the same interface: the base line that benchmarks compare guarded memory with."""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import torch

from attnfuzz.harness.memory import layout, poison
from attnfuzz.harness.memory.allocation import Allocation, Location, locate
from attnfuzz.harness.memory.damage import Damage
from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.harness.memory.poison import Pattern
from attnfuzz.harness.memory.seal import CopySeal, Seal
from attnfuzz.kernels.backend import Fill
from attnfuzz.kernels.transfers import Pending, done, write
from attnfuzz.reference.case import Outputs


class PlainMemory:
    """Ordinary torch tensors with the fills of guarded memory, so that cases compute the same. Finds no damage."""

    def __init__(self, outputs: Outputs, device: torch.device | None = None) -> None:
        self._device = torch.device("cpu") if device is None else device
        self._output_pattern = poison.sentinel if outputs is Outputs.POISONED else poison.stale

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        stride: Sequence[int] | None = None,
        fill: Fill = Fill.POISON,
    ) -> torch.Tensor:
        """A tensor filled as `fill` says, also where `stride` (in elements) leaves gaps."""
        steps = layout.dense_stride(shape) if stride is None else tuple(stride)
        tensor = torch.empty_strided(tuple(shape), steps, dtype=dtype, device=self._device)
        if fill is Fill.ZEROS:
            return tensor.zero_()
        pattern = self._output_pattern(dtype) if fill is Fill.OUTPUT else poison.poison(dtype)
        self._write(pattern, tensor.data_ptr(), layout.extent(shape, steps) * dtype.itemsize)
        return tensor

    def copy(self, name: str, value: torch.Tensor, *, stride: Sequence[int] | None = None) -> torch.Tensor:
        """A tensor with the values, shape and dtype of `value`."""
        return write(self.tensor(name, value.shape, value.dtype, stride=stride), value)

    def holds(self, tensor: torch.Tensor) -> bool:
        """True: any memory will do."""
        del tensor
        return True

    def on_record(self, arguments: Iterable[tuple[str, torch.Tensor]]) -> list[Allocation]:
        """None, likewise."""
        del arguments
        return []

    def renew(self, tensor: torch.Tensor) -> None:
        """As in guarded memory, for a tensor without gaps."""
        if self._output_pattern is poison.sentinel:
            self._write(poison.sentinel(tensor.dtype), tensor.data_ptr(), tensor.nbytes)

    def allocations(self) -> list[Allocation]:
        """None: plain tensors are not on record."""
        return []

    def allocation_of(self, tensor: torch.Tensor) -> Allocation:
        """ValueError: plain tensors are not on record."""
        raise ValueError(f"plain memory keeps no record of a tensor of shape {tuple(tensor.shape)}: use guarded memory")

    def damage(self) -> Pending[list[Damage]]:
        """None: nothing is guarded."""
        return done([])

    def seal(self, tensors: Iterable[torch.Tensor], *, writable: Iterable[torch.Tensor] = ()) -> Seal:
        """A seal over nothing, which never breaks."""
        return CopySeal(())

    def locate(self, address: int) -> Location:
        """The address as one of unmapped memory: no tensor is on record."""
        return locate((), address)

    def content(self, allocation: Allocation) -> bytes:
        """ValueError: no tensor is on record."""
        raise ValueError(f"plain memory keeps no record of {allocation.name}: use guarded memory")

    def release(self) -> None:
        """Nothing to do: torch frees the tensors."""

    def _write(self, pattern: Pattern, address: int, nbytes: int) -> None:
        pattern.write(address, nbytes)


AnyMemory = PlacedMemory | PlainMemory
"""What a case can run on."""
