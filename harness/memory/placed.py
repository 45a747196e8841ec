"""The base class of guarded memories: recorded tensors, the bytes around them, and checks of these bytes."""

import math
from abc import ABC, abstractmethod
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Self

import torch

from attnfuzz.harness.memory import poison
from attnfuzz.harness.memory.allocation import Allocation, check_strides, dense_stride, extent
from attnfuzz.harness.memory.poison import Pattern
from attnfuzz.harness.memory.seal import Damage, Difference, Seal
from attnfuzz.harness.verdict.printable import label
from attnfuzz.kernels.interface.backend import NO_HOLE, Fill
from attnfuzz.kernels.interface.byte_runs import ByteRun
from attnfuzz.kernels.interface.transfers import Pending, write
from attnfuzz.reference.case import Guard, Outputs


class Room(NamedTuple):
    """Memory for a tensor: `flat` are exactly its elements, among `opened` accessible bytes from `start` on.

    The bytes between the two offsets of `hole`, relative to the first element, have no memory.
    """

    flat: torch.Tensor
    start: int
    opened: int
    slab: Any
    hole: tuple[int, int] = (0, 0)


Content = Pattern | torch.Tensor | None
"""The content of a new tensor: a pattern, values from any device, or poison."""


def elements_of(pattern: Pattern, tensor: torch.Tensor) -> torch.Tensor:
    """Return a host tensor of `tensor`'s shape and dtype, filled with a pattern."""
    return pattern.fill(torch.empty(tensor.shape, dtype=tensor.dtype))


class Placed:
    """A tensor in a slab. `slack` are the open bytes next to it, filled with `pattern`, as are the gaps in it."""

    __slots__ = ("allocation", "gaps", "intact", "pattern", "slab", "slack", "tensor")

    def __init__(
        self, allocation: Allocation, tensor: torch.Tensor, slab: Any, pattern: Pattern, slack: ByteRun, *, gaps: bool
    ) -> None:
        self.allocation = allocation
        self.tensor = tensor
        self.slab = slab
        self.pattern = pattern
        self.slack = slack
        self.gaps = gaps
        self.intact: tuple[torch.Tensor, ByteRun] | None = None


def opened_parts(allocation: Allocation, room: Room) -> Iterator[tuple[int, int]]:
    """Yield the (address, size) of each part of a room with memory. The outer ones include the tensor's slack."""
    for start, nbytes in allocation.parts:
        first = room.start if start == allocation.address else start
        last = start + nbytes
        end = room.start + room.opened if last == allocation.address + allocation.nbytes else last
        yield first, end - first


class PlacedMemory(ABC):
    """The `Memory` of one case: every tensor touches an inaccessible page on the side of `guard`.

    The rest of its accessible bytes, and the gaps of strides, hold poison: reading it gives a NaN or a fault, and a
    write is reported by `damage`. Tensors are valid until `release`, after which their memory serves the next case. A
    tensor without elements has no memory: torch passes kernels a null pointer for it.
    """

    direct = True

    def __init__(self, device: torch.device, guard: Guard, outputs: Outputs) -> None:
        self._device = device
        self._guard = guard
        self._output_pattern = poison.sentinel if outputs is Outputs.POISONED else poison.stale
        self._placed: list[Placed] = []
        self._empty: list[Allocation] = []
        self._by_address: dict[int, Placed] = {}
        # Sorted, because a case with hundreds of launches has thousands of tensors.
        self._addresses: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        stride: Sequence[int] | None = None,
        fill: Fill = Fill.POISON,
        hole: range = NO_HOLE,
    ) -> torch.Tensor:
        """Allocate a tensor called `name`, filled by `fill`. `stride` (in elements) may leave gaps, which hold poison.

        The rows of `hole`, on the first axis, have no memory except for parts of a page.

        Raises:
            ValueError: for strides that overlap, for a dtype without poison, and for a hole in a tensor with strides or
                another fill.
            OutOfMemory: the arena can't grow.
        """
        if hole and (stride is not None or fill is not Fill.POISON):
            raise ValueError(f"{name}: only a dense tensor of poison may have a hole")
        content = None if fill is Fill.POISON else self._pattern(fill, dtype)
        placed = self._place(name, tuple(shape), dtype, stride, content, hole)
        return torch.empty(tuple(shape), dtype=dtype, device=self._device) if placed is None else placed.tensor

    def copy(self, name: str, value: torch.Tensor, *, stride: Sequence[int] | None = None) -> torch.Tensor:
        """Copy `value`, from any device, into a guarded tensor. Raises like `tensor`."""
        placed = self._place(name, tuple(value.shape), value.dtype, stride, value)
        return torch.empty_like(value, device=self._device) if placed is None else placed.tensor

    def overwrite(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """Write values, from any device and of any dtype, into a tensor of this memory or a view of one."""
        write(tensor, values)

    def at_once(self) -> AbstractContextManager[None]:
        """See `Memory`: host memory is written as tensors are made."""
        return nullcontext()

    def flush(self) -> None:  # noqa: B027 - nothing is pending in the host's memory
        """Perform pending writes."""

    def allocations(self) -> list[Allocation]:
        """Return every tensor of this memory, in order of creation, those without elements last."""
        return [placed.allocation for placed in self._placed] + self._empty

    def allocation_of(self, tensor: torch.Tensor) -> Allocation:
        """Return the allocation that the non-empty `tensor` is a view of. ValueError for any other tensor."""
        return self._placed_of(tensor).allocation

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether `tensor`, which has elements, is a view of an allocation of this memory."""
        return self._find(tensor) is not None

    def on_record(self, arguments: Iterable[tuple[str, torch.Tensor]]) -> list[Allocation]:
        """Return the allocation behind each of these named arguments, an empty one by the argument's name.

        Raises:
            ValueError: for a tensor that lies outside of this memory.
        """
        found = []
        for name, tensor in arguments:
            # Usually it is a whole tensor of this memory.
            placed = self._by_address.get(tensor.data_ptr())
            if placed is None and tensor.numel():
                placed = self._placed_of(tensor)
            found.append(self._nowhere(name, tensor) if placed is None else placed.allocation)
        return found

    def renew(self, tensor: torch.Tensor) -> None:
        """Restore an output's sentinel before it is written again. Stale numbers are kept."""
        if self._output_pattern is poison.sentinel and tensor.numel():
            self._fill(self._placed_of(tensor), poison.sentinel(tensor.dtype))

    def content(self, allocation: Allocation) -> bytes:
        """Return a tensor's bytes, gaps included and a hole left out, after all launches so far.

        On a GPU this waits for them.
        """
        if not allocation.nbytes:
            return b""
        tensor = self._by_address[allocation.address].tensor
        flat = tensor.as_strided((allocation.nbytes // allocation.itemsize,), (1,)).view(torch.uint8)
        parts = (flat[address - allocation.address :][:nbytes] for address, nbytes in allocation.parts)
        return b"".join(part.cpu().numpy().tobytes() for part in parts)

    def damage(self) -> Pending[list[Damage]]:
        """Return the overwritten bytes around and between elements, after the launches so far."""
        owners, runs = [], []
        for placed in self._placed:
            owners.append(placed.allocation)
            runs.append(placed.slack)
            if placed.gaps:
                owners.append(placed.allocation)
                runs.append(self._between(placed))

        def damaged(differences: Sequence[Difference]) -> list[Damage]:
            return [
                Damage(each.name, run.address + difference[0] - each.address, difference[1], each.nbytes)
                for each, run, difference in zip(owners, runs, differences, strict=True)
                if difference is not None
            ]

        return self._differences(runs).then(damaged)

    def seal(self, allocations: Iterable[Allocation]) -> Seal:
        """Record the contents of allocations of this memory."""
        return self._sealed([each for each in allocations if each.nbytes])

    def release(self) -> None:
        """Return all memory to the arena. Its tensors must not be used any more."""
        slabs = [placed.slab for placed in self._placed]
        self._placed.clear()
        self._empty.clear()
        self._by_address.clear()
        self._addresses.clear()
        self._give(slabs)

    @abstractmethod
    def _room(self, elements: int, dtype: torch.dtype, hole: range) -> Room:
        """Allocate room for a tensor, flush with the guard. The bytes of `hole` need no memory."""

    @abstractmethod
    def _give(self, slabs: list[Any]) -> None:
        """Return slabs to the arena."""

    @abstractmethod
    def _write(self, pattern: Pattern, address: int, nbytes: int) -> None:
        """Fill `nbytes` at `address`."""

    def _filled(self, pattern: Pattern, address: int, nbytes: int) -> ByteRun:
        """Return the run that `_write` makes equal to a pattern."""
        return ByteRun(address, pattern.address, nbytes)

    @abstractmethod
    def _differences(self, runs: Sequence[ByteRun]) -> Pending[list[Difference]]:
        """Compare each run with its counterpart."""

    @abstractmethod
    def _sealed(self, allocations: Sequence[Allocation]) -> Seal:
        """Make a seal over these allocations."""

    def _initialise(self, placed: Placed, room: Room, content: Content) -> None:
        """Fill a new tensor with its content, and the bytes around and between its elements with poison."""
        self._poison(placed, room, own=content is None or placed.gaps)
        if isinstance(content, Pattern):
            self._fill(placed, content)
        elif content is not None:
            write(placed.tensor, content)

    def _poison(self, placed: Placed, room: Room, *, own: bool) -> None:
        """Fill the bytes around a tensor, and with `own` its own bytes, which are otherwise written next."""
        if not own:
            self._write(placed.pattern, placed.slack.address, placed.slack.nbytes)
            return
        for start, nbytes in opened_parts(placed.allocation, room):
            self._write(placed.pattern, start, nbytes)

    def _pattern(self, fill: Fill, dtype: torch.dtype) -> Pattern | None:
        """Return the pattern of a tensor's own bytes, None for poison."""
        return poison.zeros() if fill is Fill.ZEROS else self._output_pattern(dtype)

    def _place(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        stride: Sequence[int] | None,
        content: Content,
        hole: range = NO_HOLE,
    ) -> Placed | None:
        # The name goes into the journal, so it must be printable.
        name = label(name)
        pattern = poison.poison(dtype)
        itemsize, type_name = dtype.itemsize, str(dtype)[6:]
        elements = count = math.prod(shape)
        if stride is not None:
            check_strides(name, shape, stride)
            elements = extent(shape, stride)
        nbytes = elements * itemsize
        if not nbytes:
            steps = dense_stride(shape) if stride is None else tuple(stride)
            self._empty.append(Allocation(name, 0, 0, shape, type_name, itemsize, steps, self._guard))
            return None
        row = nbytes // shape[0] if hole else 0
        room = self._room(elements, dtype, range(hole.start * row, hole.stop * row))
        slack = room.opened - nbytes
        right = self._guard is Guard.RIGHT
        address = room.start + slack if right else room.start
        around = self._filled(pattern, room.start if right else address + nbytes, slack)
        tensor = room.flat.view(shape) if stride is None else room.flat.as_strided(shape, stride)
        steps = tensor.stride()
        allocation = Allocation(name, address, nbytes, shape, type_name, itemsize, steps, self._guard, room.hole)
        placed = Placed(allocation, tensor, room.slab, pattern, around, gaps=elements != count)
        self._initialise(placed, room, content)
        self._placed.append(placed)
        self._by_address[address] = placed
        insort(self._addresses, address)
        return placed

    def _fill(self, placed: Placed, pattern: Pattern) -> None:
        """Fill the elements of a tensor."""
        if placed.gaps:
            write(placed.tensor, elements_of(pattern, placed.tensor))
        else:
            self._write(pattern, placed.allocation.address, placed.allocation.nbytes)

    def _between(self, placed: Placed) -> ByteRun:
        """Return the run of a tensor with gaps. Its counterpart has the current elements, and poison between them."""
        tensor, allocation = placed.tensor, placed.allocation
        if placed.intact is None:
            elements = allocation.nbytes // allocation.itemsize
            expected = torch.empty(elements, dtype=tensor.dtype, device=self._device)
            run = ByteRun(allocation.address, expected.data_ptr(), allocation.nbytes)
            self._write(placed.pattern, run.other, run.nbytes)
            placed.intact = expected.as_strided(tensor.shape, tensor.stride()), run
        current, run = placed.intact
        current.copy_(tensor)
        return run

    def _nowhere(self, name: str, tensor: torch.Tensor) -> Allocation:
        """Return the allocation of a tensor without elements."""
        shape, stride, dtype = tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype)[6:]
        return Allocation(name, 0, 0, shape, dtype, tensor.itemsize, stride, self._guard)

    def _placed_of(self, tensor: torch.Tensor) -> Placed:
        found = self._find(tensor)
        if found is None:
            raise ValueError(
                f"a tensor of shape {tuple(tensor.shape)} lies outside of guarded memory: allocate it with "
                "memory.tensor"
            )
        return found

    def _find(self, tensor: torch.Tensor) -> Placed | None:
        address = tensor.data_ptr()
        exact = self._by_address.get(address)
        if exact is not None:
            return exact
        # The last tensor that begins at or before the address.
        index = bisect_right(self._addresses, address) - 1
        if index < 0:
            return None
        placed = self._by_address[self._addresses[index]]
        allocation = placed.allocation
        return placed if address < allocation.address + allocation.nbytes else None
