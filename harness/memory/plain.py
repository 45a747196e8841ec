"""Memory without guards, behind the same interface: the base line that benchmarks compare guarded memory with."""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import torch

from attnfuzz.harness.memory import layout, poison
from attnfuzz.harness.memory.allocation import Allocation, Location, locate
from attnfuzz.harness.memory.damage import Damage
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.harness.memory.seal import Seal
from attnfuzz.kernels.backend import Fill
from attnfuzz.reference.case import Outputs


class PlainMemory:
    """Ordinary torch tensors with the fills of guarded memory, so that cases compute the same. Finds no damage."""

    def __init__(self, outputs: Outputs) -> None:
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
        tensor = torch.empty_strided(tuple(shape), steps, dtype=dtype)
        if fill is Fill.ZEROS:
            return tensor.zero_()
        pattern = self._output_pattern(dtype) if fill is Fill.OUTPUT else poison.poison(dtype)
        pattern.write(tensor.data_ptr(), layout.extent(shape, steps) * dtype.itemsize)
        return tensor

    def copy(self, name: str, value: torch.Tensor, *, stride: Sequence[int] | None = None) -> torch.Tensor:
        """A tensor with the values, shape and dtype of `value`."""
        return self.tensor(name, value.shape, value.dtype, stride=stride).copy_(value)

    def on_record(self, arguments: Iterable[tuple[str, torch.Tensor]]) -> list[Allocation]:
        """None, likewise."""
        del arguments
        return []

    def renew(self, tensor: torch.Tensor) -> None:
        """As in guarded memory, for a tensor without gaps."""
        if self._output_pattern is poison.sentinel:
            poison.sentinel(tensor.dtype).write(tensor.data_ptr(), tensor.nbytes)

    def allocations(self) -> list[Allocation]:
        """None: plain tensors are not on record."""
        return []

    def allocation_of(self, tensor: torch.Tensor) -> Allocation:
        """ValueError: plain tensors are not on record."""
        raise ValueError(f"plain memory keeps no record of a tensor of shape {tuple(tensor.shape)}: use guarded memory")

    def damage(self) -> list[Damage]:
        """None: nothing is guarded."""
        return []

    def seal(self, tensors: Iterable[torch.Tensor], *, writable: Iterable[torch.Tensor] = ()) -> Seal:
        """A seal over nothing, which never breaks."""
        return Seal(())

    def locate(self, address: int) -> Location:
        """The address as one of unmapped memory: no tensor is on record."""
        return locate((), address)

    def release(self) -> None:
        """Nothing to do: torch frees the tensors."""


AnyMemory = GuardedMemory | PlainMemory
"""What a case can run on."""
