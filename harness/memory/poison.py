"""The content of memory before it is written: poison, the output sentinel, and stale numbers.

Poison is a NaN for floats, so that any result computed from it is visible, and POISON_ID for integers: a length that
runs into a guard page at once, and a page id far outside of any pool. The sentinel is another NaN, which distinguishes
unwritten outputs from computed NaN, for which hardware produces the canonical payload, and from copied poison.
float8_e4m3fn has only two NaNs, which differ in the sign: 0x7F is poison, 0xFF the sentinel.
"""

import ctypes
from functools import cache

import torch

POISON_ID = 0x00BADBAD
"""Poison of an integer tensor. As a page id it leads into the reservation, far from every tensor."""

_POISON = {
    torch.float64: 0x7FFBADBADBADBADB,
    torch.float32: 0x7FCBADBA,
    torch.bfloat16: 0x7FED,
    torch.float16: 0x7EAD,
    torch.float8_e4m3fn: 0x7F,
    torch.int32: POISON_ID,
    torch.int64: POISON_ID,
    torch.uint8: 0xAD,
    torch.uint16: 0xADAD,
    torch.uint32: POISON_ID,
    torch.bool: 0xAD,
}
_SENTINEL = {
    torch.float64: 0x7FF85E1715E1715E,
    torch.float32: 0x7FC5E171,
    torch.bfloat16: 0x7FDB,
    torch.float16: 0x7EDB,
    torch.float8_e4m3fn: 0xFF,
    torch.int32: 0x0BADF00D,
    torch.int64: 0x0BADF00D,
    torch.uint8: 0xDB,
    torch.uint16: 0x5DDB,
    torch.uint32: 0x0BADF00D,
    torch.bool: 0xDB,
}
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
PERIOD = 1 << 18
"""Size of a precomputed pattern: it stays in the second-level cache, and most tensors need one copy of it."""


class Pattern:
    """A run of `PERIOD` bytes, at `address`, that is repeated over memory from the start of each write."""

    def __init__(self, content: bytes) -> None:
        assert len(content) == PERIOD
        self._buffer = ctypes.create_string_buffer(content, PERIOD)
        self.address = ctypes.addressof(self._buffer)

    def write(self, address: int, nbytes: int) -> None:
        """Fill `nbytes` at `address`."""
        while nbytes > PERIOD:
            ctypes.memmove(address, self.address, PERIOD)
            address += PERIOD
            nbytes -= PERIOD
        ctypes.memmove(address, self.address, nbytes)

    def content(self, nbytes: int) -> bytes:
        """Return the `nbytes` that `write` writes."""
        whole, rest = divmod(nbytes, PERIOD)
        return self._buffer.raw * whole + self._buffer.raw[:rest]

    def fill(self, dense: torch.Tensor) -> torch.Tensor:
        """Fill a dense tensor of the host, and return it."""
        self.write(dense.data_ptr(), dense.nbytes)
        return dense


@cache
def poison(dtype: torch.dtype) -> Pattern:
    """Return the pattern of memory that must not be read. Raises ValueError for a dtype that attention never uses."""
    return Pattern(_repeated(_POISON, dtype))


@cache
def sentinel(dtype: torch.dtype) -> Pattern:
    """Return the pattern of an output not yet written by its kernel. Raises like `poison`."""
    return Pattern(_repeated(_SENTINEL, dtype))


@cache
def zeros() -> Pattern:
    """Return the pattern of cleared memory."""
    return Pattern(bytes(PERIOD))


@cache
def stale(dtype: torch.dtype) -> Pattern:
    """Return numbers like those left by an earlier call: normal floats, small integers. The same in every process."""
    if dtype not in _POISON:
        raise _unknown(dtype)
    count = PERIOD // dtype.itemsize
    generator = torch.Generator().manual_seed(20130)
    if dtype.is_floating_point:
        numbers = torch.randn(count, generator=generator).to(dtype)
    else:
        numbers = torch.randint(0, 2 if dtype == torch.bool else 64, (count,), generator=generator, dtype=dtype)
    return Pattern(numbers.view(torch.uint8).numpy().tobytes())


def unwritten(tensor: torch.Tensor) -> torch.Tensor:
    """Return a bool mask of the elements that hold the sentinel's bits. Raises like `poison`."""
    if tensor.dtype not in _SENTINEL:
        raise _unknown(tensor.dtype)
    return tensor.view(_BITS[tensor.itemsize]) == _SENTINEL[tensor.dtype]


def _repeated(patterns: dict[torch.dtype, int], dtype: torch.dtype) -> bytes:
    if dtype not in patterns:
        raise _unknown(dtype)
    element = patterns[dtype].to_bytes(dtype.itemsize, "little")
    return element * (PERIOD // dtype.itemsize)


def _unknown(dtype: torch.dtype) -> ValueError:
    known = ", ".join(str(known).removeprefix("torch.") for known in _POISON)
    return ValueError(f"no poison is defined for {dtype}: use one of {known}")
