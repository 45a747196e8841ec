"""Slabs of a GPU's memory that lie far apart in unmapped addresses, pooled between cases."""

import gc
import weakref
from types import TracebackType
from typing import Any, Self

import torch

from attnfuzz.harness.memory.cuda.address_space import CudaAddressSpace
from attnfuzz.harness.memory.reservation import OutOfMemory
from attnfuzz.harness.memory.shelf import Shelf
from attnfuzz.harness.memory.spacing import Spacing, size_class

_RESERVED = 1 << 40
"""Bytes of address space: half of it holds POISON_ID times a page of 40 KiB, so that such an id faults inside."""

_LEAST = 1 << 34


class CudaSlab:
    """`capacity` bytes, all of them mapped while a tensor lives there."""

    __slots__ = ("address", "capacity", "mapped")

    def __init__(self, address: int, capacity: int) -> None:
        self.address = address
        self.capacity = capacity
        self.mapped = False


class _Holder:
    """What torch asks for an array of bytes, and keeps as long as any tensor, graph or kernel's wrapper has it."""

    def __init__(self, address: int, nbytes: int) -> None:
        # https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class CudaArena:
    """Memory on `device` for tensors that touch an unmapped address.

    A slab is mapped whole, since mapping takes the driver long, and lies between at least GAP bytes (and at least its
    own size) of unmapped addresses. It is taken again for a tensor of its size class once nobody holds the last one's
    storage. Slabs at rest keep at most `budget` bytes of memory; beyond it, those that rested longest are unmapped.
    """

    def __init__(
        self,
        *,
        device: torch.device = torch.device("cuda", 0),  # noqa: B008 - torch devices are values
        budget: int = 512 << 20,
        reserve: int = _RESERVED,
    ) -> None:
        self.device = device
        self._space = CudaAddressSpace(device, reserve, min(reserve, _LEAST))
        self._spacing = Spacing(self._space.address, self._space.nbytes, self._space.page, "draw smaller cases")
        self._shelf: Shelf[CudaSlab] = Shelf(budget)
        self._mapped: set[CudaSlab] = set()
        # A storage may die in the middle of anything, even of a collection of garbage: its slab only lines up here.
        self._returned: list[CudaSlab] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def page(self) -> int:
        """Bytes of which slabs are multiples."""
        return self._space.page

    def take(self, nbytes: int) -> CudaSlab:
        """A mapped slab of at least `nbytes`, holding what its last use left. It goes back when `bytes_in` says so.

        OutOfMemory if there is no address space or memory left.
        """
        self.settle()
        capacity = size_class(-(-nbytes // self.page)) * self.page
        slab = self._shelf.take(capacity) or CudaSlab(self._spacing.place(capacity), capacity)
        if not slab.mapped:
            try:
                self._map(slab)
            except OutOfMemory:
                self._shelf.put_cold(slab)
                raise
        return slab

    def bytes_in(self, slab: CudaSlab, offset: int, nbytes: int) -> torch.Tensor:
        """A tensor over exactly these bytes of a slab, which rests again as soon as nobody holds its storage."""
        holder = _Holder(slab.address + offset, nbytes)
        returns = weakref.finalize(holder, self._returned.append, slab)
        # Nothing is given back at the end of a process: that all memory goes then is the driver's affair.
        returns.atexit = False
        return torch.as_tensor(holder, device=self.device)

    def settle(self) -> None:
        """Put the slabs of storages that died to rest."""
        while self._returned:
            self._shelf.put(self._returned.pop())
        self._unmap(list(self._shelf.excess()))

    def close(self) -> None:
        """Unmap everything: every tensor in the arena becomes invalid."""
        self._shelf.clear()
        self._unmap(list(self._mapped))
        self._space.close()

    def _map(self, slab: CudaSlab) -> None:
        try:
            self._space.map(slab.address, slab.capacity)
        except OutOfMemory:
            self._make_room()
            self._space.map(slab.address, slab.capacity)
        slab.mapped = True
        self._mapped.add(slab)

    def _make_room(self) -> None:
        """Give back all memory that nobody needs."""
        gc.collect()
        self.settle()
        self._unmap(list(self._shelf.all_warm()))
        torch.cuda.empty_cache()

    def _unmap(self, slabs: list[CudaSlab]) -> None:
        if slabs:
            self._space.synchronise()
        for slab in slabs:
            self._space.unmap(slab.address, slab.capacity)
            slab.mapped = False
            self._mapped.discard(slab)
