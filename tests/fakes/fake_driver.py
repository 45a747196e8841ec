"""Stands for the CUDA driver's mapping of memory, with real signatures and faults, on the host's address space.

A page is larger than the host's, so that a tensor has slack beside it, as on a GPU.
"""

import ctypes
import importlib
import inspect
import itertools
import mmap
from collections.abc import Callable
from typing import Any

import torch

driver = importlib.import_module("cuda.bindings.driver")

GRANULARITY = 16 * mmap.PAGESIZE
AROUND = 1 << 39
"""Bytes on each side of a reservation in which there is nothing either, as is likely of a GPU's addresses."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MADV_DONTNEED = 4
_OK = driver.CUresult.CUDA_SUCCESS
_NONE_LEFT = driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY


class FakeDriver:
    """A GPU with `memory` bytes, whose driver reserves up to `addresses` bytes at once.

    `memory` can grow. `mapped` are the addresses that can be used, with their sizes; `error` is what every call gives
    once it is set.
    """

    def __init__(self, memory: int = 1 << 40, addresses: int = 1 << 40) -> None:
        self.memory = memory
        self._addresses = addresses
        self._handles: dict[int, int] = {}
        self._numbers = itertools.count(1)
        self._attached: dict[int, int] = {}
        self.mapped: dict[int, int] = {}
        self.error = _OK

    def granularity(self, prop: Any, option: Any) -> tuple[Any, ...]:
        _check_device(prop)
        assert option == driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        return self.error, GRANULARITY

    def reserve(self, size: int, alignment: int, addr: int, flags: int) -> tuple[Any, ...]:
        assert size % GRANULARITY == alignment == addr == flags == 0
        if size > self._addresses:
            return _NONE_LEFT, driver.CUdeviceptr(0)
        # Private, anonymous, not reserved.
        start = _LIBC.mmap(None, size + 2 * AROUND, 0, 0x02 | 0x20 | 0x4000, -1, 0)
        return self.error, driver.CUdeviceptr(start + AROUND)

    def address_free(self, ptr: int, size: int) -> tuple[Any, ...]:
        assert not any(ptr <= address < ptr + size for address in self.mapped)
        _LIBC.munmap(ptr - AROUND, size + 2 * AROUND)
        return (self.error,)

    def create(self, size: int, prop: Any, flags: int) -> tuple[Any, ...]:
        _check_device(prop)
        assert size > 0
        assert size % GRANULARITY == flags == 0
        if sum(self._attached.values()) + sum(self._handles.values()) + size > self.memory:
            return _NONE_LEFT, driver.CUmemGenericAllocationHandle(0)
        handle = next(self._numbers)
        self._handles[handle] = size
        return self.error, driver.CUmemGenericAllocationHandle(handle)

    def release(self, handle: Any) -> tuple[Any, ...]:
        del self._handles[int(handle)]
        return (self.error,)

    def map_memory(self, ptr: int, size: int, offset: int, handle: Any, flags: int) -> tuple[Any, ...]:
        assert ptr % mmap.PAGESIZE == offset == flags == 0
        assert self._handles[int(handle)] == size
        assert not any(ptr < start + length and start < ptr + size for start, length in self._attached.items())
        self._attached[ptr] = size
        return (self.error,)

    def set_access(self, ptr: int, size: int, desc: list[Any], count: int) -> tuple[Any, ...]:
        assert len(desc) == count == 1
        assert desc[0].flags == driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        assert desc[0].location.id == 0
        assert self._attached[ptr] == size
        if _LIBC.mprotect(ptr, size, mmap.PROT_READ | mmap.PROT_WRITE):
            return (driver.CUresult.CUDA_ERROR_INVALID_VALUE,)
        self.mapped[ptr] = size
        return (self.error,)

    def unmap(self, ptr: int, size: int) -> tuple[Any, ...]:
        assert self._attached.pop(ptr) == size
        self.mapped.pop(ptr, None)
        _LIBC.mprotect(ptr, size, 0)
        _LIBC.madvise(ptr, size, _MADV_DONTNEED)
        return (self.error,)

    def synchronise(self) -> tuple[Any, ...]:
        return (self.error,)

    def install(self, put: Callable[[Any, str, Any], None]) -> None:
        """Let `put`, which is setattr or a fixture's, replace the driver's functions and torch.as_tensor."""
        fakes: dict[str, Callable[..., Any]] = {
            "cuMemGetAllocationGranularity": self.granularity,
            "cuMemAddressReserve": self.reserve,
            "cuMemAddressFree": self.address_free,
            "cuMemCreate": self.create,
            "cuMemRelease": self.release,
            "cuMemMap": self.map_memory,
            "cuMemSetAccess": self.set_access,
            "cuMemUnmap": self.unmap,
            "cuCtxSynchronize": self.synchronise,
        }
        for name, fake in fakes.items():
            assert list(inspect.signature(fake).parameters) == list(inspect.signature(getattr(driver, name)).parameters)
            put(driver, name, fake)
        put(torch, "as_tensor", as_tensor)


def as_tensor(data: Any, *, real: Callable[..., Any] = torch.as_tensor, **options: Any) -> Any:
    """torch.as_tensor, also of what is an array of bytes on a GPU."""
    array = getattr(data, "__cuda_array_interface__", None)
    if array is None:
        return real(data, **options)
    assert set(array) == {"shape", "typestr", "data", "version"}
    assert (array["typestr"], array["version"]) == ("|u1", 3)
    (address, _), (nbytes,) = array["data"], array["shape"]
    memory = (ctypes.c_char * nbytes).from_address(address)
    # torch holds the bytes, and through them the array, as it does on a GPU.
    memory.array = data
    return torch.frombuffer(memory, dtype=torch.uint8)


def _check_device(prop: Any) -> None:
    assert isinstance(prop, driver.CUmemAllocationProp)
    assert prop.type == driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    assert prop.location.type == driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
