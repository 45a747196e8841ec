"""A span of a GPU's address space in which nothing is mapped until memory is put there."""

from typing import Any

import torch

from attnfuzz.harness.memory.reservation import OutOfMemory


class CudaError(RuntimeError):
    """A call of the CUDA driver failed; the message has the driver's name for the error."""


class CudaAddressSpace:
    """`nbytes` from `address` on, reserved on a GPU and unmapped at first: an access faults.

    The size asked for is halved until the driver grants it, down to `least`. `page` is the least that can be mapped:
    2 MiB on every GPU so far. It costs no memory, whatever its size.
    """

    def __init__(self, device: torch.device, nbytes: int, least: int) -> None:
        # A first allocation makes the device's context current, which the driver's calls need.
        torch.empty(1, device=device)
        # Importing it costs time, and needs NVIDIA's package: only those who have a GPU come here.
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
        """Put memory behind whole pages. What it holds is anybody's guess.

        Raises:
            OutOfMemory: the GPU has none left.
            CudaError: the driver refuses, for example after a fault.

        """
        handle = self._call("cuMemCreate", nbytes, self._memory, 0)
        try:
            self._call("cuMemMap", address, nbytes, 0, handle, 0)
        finally:
            # The mapping keeps the memory; it goes with cuMemUnmap.
            self._call("cuMemRelease", handle)
        try:
            self._call("cuMemSetAccess", address, nbytes, [self._access], 1)
        except BaseException:
            self.unmap(address, nbytes)
            raise

    def unmap(self, address: int, nbytes: int) -> None:
        """Give the memory behind what was mapped in one go back. No kernel that uses it may be running."""
        self._call("cuMemUnmap", address, nbytes)

    def synchronise(self) -> None:
        """Wait for all kernels. CudaError if one of them failed."""
        self._call("cuCtxSynchronize")

    def close(self) -> None:
        """Give the address space back; nothing may be mapped in it."""
        self._call("cuMemAddressFree", self.address, self.nbytes)

    def _call(self, name: str, *arguments: Any) -> Any:
        error, *result = getattr(self._driver, name)(*arguments)
        if error == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise OutOfMemory("the GPU has no memory left for guarded memory: draw smaller cases, or run fewer jobs")
        if error != self._driver.CUresult.CUDA_SUCCESS:
            raise CudaError(f"{name}: {error.name}")
        return result[0] if result else None
