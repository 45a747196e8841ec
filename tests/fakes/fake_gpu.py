"""A GPU for exported scripts on a machine without one: real signatures, the CPU's memory, and the native kernels.

Run with the paths of scripts, it runs each in a process of its own and prints its exit code. FlashInfer's functions and
those of the CUDA driver keep their names and signatures; a kernel that faults leaves the "GPU" broken, as CUDA does:
every later synchronisation raises. Scripts must have "cpu" for their DEVICE.
"""

import ctypes
import functools
import importlib
import inspect
import mmap
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
from run_scripts import run_each

from attnfuzz.kernels.native.ops import NATIVE

driver = importlib.import_module("cuda.bindings.driver")

_GRANULARITY = 16 * mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_broken = False
_mapped: list[tuple[int, int]] = []
"""Where memory that was mapped begins and ends."""


def granularity(prop: Any, option: Any) -> tuple[Any, ...]:
    _check_device(prop)
    assert option == driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    return driver.CUresult.CUDA_SUCCESS, _GRANULARITY


def reserve(size: int, alignment: int, addr: int, flags: int) -> tuple[Any, ...]:
    assert size % _GRANULARITY == alignment == addr == flags == 0
    # Beyond it is nothing either, as is likely of a GPU's addresses: private, anonymous, not reserved.
    start = _LIBC.mmap(None, 1 << 40, 0, 0x02 | 0x20 | 0x4000, -1, 0)
    return driver.CUresult.CUDA_SUCCESS, driver.CUdeviceptr(start + (1 << 39))


def create(size: int, prop: Any, flags: int) -> tuple[Any, ...]:
    _check_device(prop)
    assert size > 0
    assert size % _GRANULARITY == flags == 0
    return driver.CUresult.CUDA_SUCCESS, driver.CUmemGenericAllocationHandle(size)


def map_memory(ptr: int, size: int, offset: int, handle: Any, flags: int) -> tuple[Any, ...]:
    assert ptr % mmap.PAGESIZE == offset == flags == 0
    assert int(handle) == size
    return (driver.CUresult.CUDA_SUCCESS,)


def set_access(ptr: int, size: int, desc: list[Any], count: int) -> tuple[Any, ...]:
    assert len(desc) == count == 1
    assert desc[0].flags == driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    assert desc[0].location.id == 0
    _mapped.append((ptr, ptr + size))
    if _LIBC.mprotect(ptr, size, mmap.PROT_READ | mmap.PROT_WRITE):
        return (driver.CUresult.CUDA_ERROR_INVALID_VALUE,)
    return (driver.CUresult.CUDA_SUCCESS,)


def _check_device(prop: Any) -> None:
    assert isinstance(prop, driver.CUmemAllocationProp)
    assert prop.type == driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    assert prop.location.type == driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE


def synchronize() -> None:
    if _broken:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


def as_tensor(data: Any, *, real: Callable[..., Any] = torch.as_tensor, **options: Any) -> Any:
    """torch.as_tensor, also of what is an array of bytes on a GPU."""
    array = getattr(data, "__cuda_array_interface__", None)
    if array is None:
        return real(data, **options)
    assert set(array) == {"shape", "typestr", "data", "version"}
    assert (array["typestr"], array["version"]) == ("|u1", 3)
    (address, _), (nbytes,) = array["data"], array["shape"]
    return torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=torch.uint8)


def launched(function: Callable[..., Any], signature: inspect.Signature, **arguments: Any) -> None:
    """Run a native kernel where it may die: first in a child, of which nothing but its death is seen."""
    global _broken  # noqa: PLW0603 - a GPU is broken for the whole process
    signature.bind(**arguments)
    synchronize()
    query = arguments.get("query")
    if query is not None and _mapped:
        first, end = query.data_ptr(), query.data_ptr() + query.nbytes
        assert any(first == start or end == last for start, last in _mapped), "the query is not flush with a guard"
    pid = os.fork()
    if not pid:
        # tvm_ffi's handler prints where it was, which takes a second.
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        try:
            function(**arguments)
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        _broken = True
    else:
        function(**arguments)


def install() -> None:
    """Put them where scripts find them."""
    fakes: dict[str, Callable[..., Any]] = {
        "cuMemGetAllocationGranularity": granularity,
        "cuMemAddressReserve": reserve,
        "cuMemCreate": create,
        "cuMemMap": map_memory,
        "cuMemSetAccess": set_access,
    }
    for name, fake in fakes.items():
        assert list(inspect.signature(fake).parameters) == list(inspect.signature(getattr(driver, name)).parameters)
        setattr(driver, name, fake)
    for op in NATIVE.ops():
        if op.module is not None:
            module = importlib.import_module(op.module)
            function: Callable[..., Any] = getattr(module, op.name)
            setattr(module, op.name, functools.partial(launched, op.function, inspect.signature(function)))
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch, "as_tensor", as_tensor),
        (torch.cuda, "synchronize", synchronize),
        (torch.cuda, "current_device", lambda: 0),
        (torch.cuda, "is_available", lambda: True),
        (torch.cuda, "get_device_name", lambda: "no GPU"),
    ]
    for module, name, fake in replaced:
        setattr(module, name, fake)


def main() -> None:
    torch.set_num_threads(1)
    install()
    run_each(sys.argv[1:])


if __name__ == "__main__":
    main()
