"""An arena of GPU memory: slabs far apart in unmapped addresses, pooled between cases."""

import gc
from typing import Any, Self

import torch

from attnfuzz.harness.memory.slabs import OutOfMemory, Shelf, Spacing, size_class


class CudaError(RuntimeError):
    """A call of the CUDA driver failed. The message has the driver's name for the error."""


class CudaAddressSpace:
    """`nbytes` from `address` on, reserved on a GPU and unmapped at first, so that an access faults. It uses no memory.

    The requested size is halved until the driver grants it, down to `least`. `page` is the mapping granularity: 2 MiB
    on every GPU so far.
    """

    def __init__(self, device: torch.device, nbytes: int, least: int) -> None:
        # A first allocation makes the device's context current, as the driver's calls require.
        torch.empty(1, device=device)
        # The import is slow and needs NVIDIA's package: only on a GPU.
        from cuda.bindings import driver  # noqa: PLC0415

        self._driver = driver
        self._memory = driver.CUmemAllocationProp()
        self._memory.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._memory.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._memory.location.id = device.index or 0
        self._access = driver.CUmemAccessDesc()
        self._access.location = self._memory.location
        self._access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        least_grain = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.page: int = self._call("cuMemGetAllocationGranularity", self._memory, least_grain)
        self.nbytes = nbytes
        while True:
            error, address = driver.cuMemAddressReserve(self.nbytes, 0, 0, 0)
            if error == driver.CUresult.CUDA_SUCCESS:
                break
            if self.nbytes // 2 < least:
                raise OutOfMemory(
                    f"guarded memory needs {least >> 30} GiB of the GPU's address space, not of its memory "
                    f"({error.name}): run fewer jobs on this GPU"
                )
            self.nbytes //= 2
        self.address = int(address)

    def map(self, address: int, nbytes: int) -> None:
        """Map memory to whole pages, with undefined content.

        Raises:
            OutOfMemory: the GPU has none left.
            CudaError: the driver refuses, for example after a fault.
        """
        handle = self._call("cuMemCreate", nbytes, self._memory, 0)
        try:
            self._call("cuMemMap", address, nbytes, 0, handle, 0)
        finally:
            # The mapping keeps the memory until cuMemUnmap.
            self._call("cuMemRelease", handle)
        try:
            self._call("cuMemSetAccess", address, nbytes, [self._access], 1)
        except BaseException:
            self.unmap(address, nbytes)
            raise

    def unmap(self, address: int, nbytes: int) -> None:
        """Unmap a range mapped by one call. No kernel that uses it may be running."""
        self._call("cuMemUnmap", address, nbytes)

    def synchronise(self) -> None:
        """Wait for all kernels. Raises CudaError if one failed."""
        self._call("cuCtxSynchronize")

    def close(self) -> None:
        """Free the address space. Nothing may be mapped in it."""
        self._call("cuMemAddressFree", self.address, self.nbytes)

    def _call(self, name: str, *arguments: Any) -> Any:
        error, *result = getattr(self._driver, name)(*arguments)
        if error == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise OutOfMemory("the GPU has no memory left for guarded memory: draw smaller cases, or run fewer jobs")
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise CudaError(f"{name}: {error.name}")
        return result[0] if result else None


_RESERVED = 1 << 40
"""Size of the address space: half of it holds POISON_ID times a page of 40 KiB, so that such an id faults inside."""

_LEAST = 1 << 34


_BUDGET = 1 << 30
"""Bytes of idle memory that are kept. Cases with a call per request have hundreds of tensors, each in a slab of 2 MiB:
with half of it, `sdpa_flash` maps ten slabs per case, instead of two.
"""


Part = tuple[int, int]
"""A part of a slab: its offset and its size in bytes, whole pages."""


class CudaSlab:
    """`capacity` bytes, mapped while a tensor lives there: whole, or only the `parts` around its hole."""

    __slots__ = ("address", "capacity", "parts")

    def __init__(self, address: int, capacity: int) -> None:
        self.address = address
        self.capacity = capacity
        self.parts: list[Part] = []

    @property
    def hollow(self) -> bool:
        """Whether some of its bytes are not mapped."""
        return self.parts != [(0, self.capacity)]


class _Holder:
    """Bytes of a slab for torch, alive as long as any tensor, graph or kernel wrapper uses them.

    Then the slab is queued in `returned`.
    """

    def __init__(self, slab: CudaSlab, offset: int, nbytes: int, returned: list[CudaSlab]) -> None:
        self._slab, self._returned = slab, returned
        # https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (slab.address + offset, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._returned.append(self._slab)


class CudaArena:
    """Memory on `device` for tensors that touch an unmapped address.

    A slab is mapped whole, since mapping is slow, except around a hole, with at least GAP unmapped bytes (and at least
    its own size) on each side. It is reused for a tensor of its size class once the last one's storage is freed. Idle
    slabs keep at most `budget` bytes of memory between cases, and when more is mapped; beyond it, the longest idle ones
    are unmapped.
    """

    def __init__(
        self,
        *,
        device: torch.device = torch.device("cuda", 0),  # noqa: B008 - torch devices are values
        budget: int = _BUDGET,
        reserve: int = _RESERVED,
    ) -> None:
        self.device = device
        self._space = CudaAddressSpace(device, reserve, min(reserve, _LEAST))
        self._spacing = Spacing(self._space.address, self._space.nbytes, self._space.page, "draw smaller cases")
        self._shelf: Shelf[CudaSlab] = Shelf(budget)
        self._mapped: set[CudaSlab] = set()
        # A storage may be freed at any time, even during garbage collection: its slab is only queued here.
        self._returned: list[CudaSlab] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def page(self) -> int:
        """Granularity of slabs in bytes."""
        return self._space.page

    def take(self, nbytes: int) -> CudaSlab:
        """Take a mapped slab of at least `nbytes`, not cleared; `bytes_in` arranges its return. Raises OutOfMemory."""
        capacity = size_class(-(-nbytes // self.page)) * self.page
        return self._take(capacity, [(0, capacity)])

    def take_around(self, capacity: int, before: Part, behind: Part) -> CudaSlab:
        """Take a slab of which only the parts around a hole are mapped. It frees its memory when it is returned."""
        return self._take(capacity, [before, behind])

    def _take(self, capacity: int, parts: list[Part]) -> CudaSlab:
        self._collect()
        slab = self._shelf.take(capacity) or CudaSlab(self._spacing.place(capacity), capacity)
        if slab.parts == parts:
            return slab
        self._unmap([slab] if slab.parts else [])
        try:
            self._trim()
            self._map(slab, parts)
        except OutOfMemory:
            self._shelf.put_cold(slab)
            raise
        return slab

    def bytes_in(self, slab: CudaSlab, offset: int, nbytes: int) -> torch.Tensor:
        """Return a tensor over exactly these bytes of a slab, which is returned when the tensor's storage is freed."""
        return torch.as_tensor(_Holder(slab, offset, nbytes, self._returned), device=self.device)

    def settle(self) -> None:
        """Return the slabs of freed storages to the shelf, and unmap those beyond the budget."""
        self._collect()
        self._trim()

    def close(self) -> None:
        """Unmap everything: every tensor in the arena becomes invalid."""
        self._shelf.clear()
        self._unmap(list(self._mapped))
        self._space.close()

    def _collect(self) -> None:
        while self._returned:
            slab = self._returned.pop()
            if slab.hollow:
                self._unmap([slab])
                self._shelf.put_cold(slab)
            else:
                self._shelf.put(slab)

    def _trim(self) -> None:
        self._unmap(list(self._shelf.excess()))

    def _map(self, slab: CudaSlab, parts: list[Part]) -> None:
        try:
            self._map_parts(slab, parts)
        except OutOfMemory:
            self._make_room()
            self._map_parts(slab, parts)

    def _map_parts(self, slab: CudaSlab, parts: list[Part]) -> None:
        self._mapped.add(slab)
        try:
            for offset, nbytes in parts:
                self._space.map(slab.address + offset, nbytes)
                slab.parts.append((offset, nbytes))
        except OutOfMemory:
            self._unmap([slab])
            raise

    def _make_room(self) -> None:
        """Free all unused memory."""
        gc.collect()
        self._collect()
        self._unmap(list(self._shelf.all_warm()))
        torch.cuda.empty_cache()

    def _unmap(self, slabs: list[CudaSlab]) -> None:
        if slabs:
            self._space.synchronise()
        for slab in slabs:
            for offset, nbytes in slab.parts:
                self._space.unmap(slab.address + offset, nbytes)
            slab.parts.clear()
            self._mapped.discard(slab)
