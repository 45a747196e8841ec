"""Stands for the functions of kernels/cuda/guards.cu: the same reads and writes on the host, without a GPU."""

import ctypes
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from attnfuzz.kernels.cuda import guards

_PLAIN = (1 << 64) - 1


def write(packed: bytes, stream: int) -> None:
    del stream
    for address, content in _runs(packed):
        ctypes.memmove(address, content, len(content))


def compare(packed: bytes, restore: bool, results: torch.Tensor, stream: int) -> None:
    del stream
    for index, (address, content) in enumerate(_runs(packed)):
        found = ctypes.string_at(address, len(content))
        if found == content:
            continue
        wrong = [offset for offset, (one, other) in enumerate(zip(found, content, strict=True)) if one != other]
        results[index, 0] = len(content) - wrong[0] if wrong else 0
        results[index, 1] = len(wrong)
        if restore:
            ctypes.memmove(address, content, len(content))


def _runs(packed: bytes) -> list[tuple[int, bytes]]:
    """Each run's address, and what it is written or compared with."""
    return [
        (address, ctypes.string_at(other, nbytes) if mask == _PLAIN else _repeated(address, other, nbytes, mask + 1))
        for address, other, nbytes, mask in struct.iter_unpack("4Q", packed)
    ]


def _repeated(address: int, other: int, nbytes: int, period: int) -> bytes:
    phase = address % 16
    whole = ctypes.string_at(other, period) * (-(-(phase + nbytes) // period))
    return whole[phase : phase + nbytes]


def install(put: Callable[[Any, str, Any], None]) -> None:
    """Let `put`, which is a fixture's, put them in the place of the compiled ones."""
    put(guards, "kernels", lambda: SimpleNamespace(write=write, compare=compare, failed_launch=lambda: ""))
    put(guards, "stream", lambda: 0)
