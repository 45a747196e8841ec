"""What the tests of the native kernels share: memory with guard pages, a plain reference, and children that may die."""

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import pytest
import torch

from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.fault_recorder import FAULT_RECORD, install_fault_recorder

_PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    """The kernels are compiled before anything forks."""
    build.load()


class Guarded:
    """Tensors that each touch an unreadable page: with their last byte (`right`), or with their first."""

    # What a failed test used: pytest still has to print it.
    _last_failure: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, *, right: bool) -> None:
        self._right = right
        self._regions: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        unused = self._regions
        if error is not None:
            unused, Guarded._last_failure = Guarded._last_failure, self._regions
        for start, size in unused:
            _LIBC.munmap(start, size)

    def copy(self, value: torch.Tensor, *, stride: Sequence[int] | None = None, filler: int = 0xFF) -> torch.Tensor:
        """A guarded copy of `value`; the gaps that `stride` leaves hold bytes of `filler` (NaN in every float)."""
        stride = tuple(stride or value.contiguous().stride())
        reach = sum((size - 1) * step for size, step in zip(value.shape, stride, strict=True)) + 1
        count = reach if value.numel() else 0
        usable = -(-max(count * value.element_size(), 1) // _PAGE) * _PAGE
        size = usable + 2 * _PAGE
        start = _LIBC.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self._regions.append((start, size))
        for guard in (start, start + _PAGE + usable):
            _LIBC.mprotect(guard, _PAGE, 0)
        if count == 0:
            return torch.empty_strided(value.shape, stride, dtype=value.dtype)
        nbytes = count * value.element_size()
        base = start + _PAGE + (usable - nbytes if self._right else 0)
        raw = torch.frombuffer((ctypes.c_char * nbytes).from_address(base), dtype=torch.uint8).fill_(filler)
        tensor = raw.view(value.dtype).as_strided(value.shape, stride)
        tensor.copy_(value)
        return tensor


@dataclass(frozen=True)
class Death:
    """How a child ended: its signal (0 if it lived), and its fault record."""

    signal: int
    recorded_signal: int
    code: int
    address: int
    access: int
    done: int


@pytest.fixture(scope="session")
def guarded() -> type[Guarded]:
    """The class of guarded memory."""
    return Guarded


@pytest.fixture
def record_address() -> Iterator[int]:
    """The address of a zero fault record that children share."""
    with mmap.mmap(-1, _PAGE) as shared:
        buffer = ctypes.c_char.from_buffer(shared)
        yield ctypes.addressof(buffer)
        del buffer


@pytest.fixture
def dying(record_address: int) -> Callable[[Callable[[], object]], Death]:
    """Runs an action in a forked child with a fault recorder, and tells how the child ended."""

    def run(action: Callable[[], object]) -> Death:
        ctypes.memset(record_address, 0, FAULT_RECORD.size)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                install_fault_recorder(record_address)
                action()
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, "the action raised"
        record = FAULT_RECORD.unpack(ctypes.string_at(record_address, FAULT_RECORD.size))
        return Death(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, *record)

    return run
