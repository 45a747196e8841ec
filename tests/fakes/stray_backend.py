"""Stands for a kernel on a GPU with a bad access: `stray_backend.py:READ_2_OF_xqa` reads behind tensor 2 of a launch.

READ or WRITE, the number of a tensor among those of the launch (which starts over after the last one), and a backend's
name with "_" for what a Python name can't have. The access follows the launch, and is right behind the allocation.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.kernels.cuda import stray
from attnfuzz.kernels.gpu.catalogue import GPU_BACKENDS
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.interface.backend import Bench, Launcher, LauncherAround, Op


class StrayLauncher(LauncherAround):
    """Launches as `launcher` does, and then makes an access behind one of the launch's tensors."""

    def __init__(self, launcher: Launcher, memory: PlacedMemory, number: int, *, write: bool) -> None:
        super().__init__(launcher)
        self.memory, self.number, self.write = memory, number, write

    def launch(self, op: Op, /, **arguments: Any) -> Any:
        returned = self._inner.launch(op, **arguments)
        tensors = [tensor for tensor in _tensors(arguments.values()) if tensor.numel()]
        if not tensors:
            # A constructor, or a copy.
            return returned
        tensor = tensors[self.number % len(tensors)]
        allocation = self.memory.allocation_of(tensor)
        end = allocation.address + allocation.nbytes
        # The access has two bytes, and is aligned to them.
        distance = end + end % 2 - tensor.data_ptr()
        self._inner.launch(stray.STRAY, tensor=tensor, distance=distance, write=self.write)
        return returned


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple):
            yield from _tensors(value)


def attribute_of(backend: str, number: int, *, write: bool) -> str:
    """What such a backend is called in this file."""
    return f"{'WRITE' if write else 'READ'}_{number}_OF_{re.sub(r'[^A-Za-z0-9]', '_', backend)}"


def __getattr__(attribute: str) -> GpuBackend:
    for base in GPU_BACKENDS:
        for write in (False, True):
            number = re.search(r"_(\d+)_OF_", attribute)
            if number and attribute == attribute_of(base.name, int(number[1]), write=write):
                return _astray(base, attribute, int(number[1]), write=write)
    raise AttributeError(attribute)


def _astray(base: GpuBackend, name: str, number: int, *, write: bool) -> GpuBackend:
    def open_session(case: Any, bench: Bench) -> Any:
        assert isinstance(bench.memory, PlacedMemory)
        launcher = StrayLauncher(bench.launcher, bench.memory, number, write=write)
        return base.session(case, replace(bench, launcher=launcher))

    return replace(
        base,
        name=name,
        session=open_session,
        kernels=(*base.kernels, stray.STRAY),
        own=(*base.own, (stray.SOURCE,)),
    )
