"""Process settings that a backend may change, which are restored after its code has run."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import torch


def _default_device(_: int) -> None:
    # Only set_default_device leaves a mode behind.
    torch.set_default_device(None)


def _collect_garbage(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()


_SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch._C._len_torch_function_stack, _default_device),  # noqa: SLF001 - get_default_device takes 8 microseconds
    (torch.get_num_threads, torch.set_num_threads),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (gc.isenabled, _collect_garbage),
)
"""Getter, which takes much less than a microsecond, and setter of each setting."""


class Settings:
    """A snapshot of process-wide settings."""

    def __init__(self) -> None:
        self._values = [read() for read, _ in _SETTINGS]

    def put_back(self) -> None:
        """Restore the changed ones."""
        for (read, put), value in zip(_SETTINGS, self._values, strict=True):
            if read() != value:
                put(value)
