"""Where cases run: memory, launcher and graphs of the host, or of the one GPU that a worker sees."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from attnfuzz.harness.inside.launcher import JournalingLauncher, Tracer
from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.guarded import GuardedMemory, PlainMemory
from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.harness.memory.slabs import OutOfMemory
from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.device import Device


@dataclass(frozen=True)
class Place:
    """A device, and how this process works there.

    `memory` makes the guarded memory of a case, `plain` memory without guards, and `launcher` its launcher.
    `too_large` are the errors for a case that finds no memory: no fault of anybody's.
    """

    device: torch.device
    memory: Callable[[Guard, Outputs], PlacedMemory]
    plain: Callable[[Outputs], PlacedMemory]
    launcher: Callable[[PlacedMemory, Callable[[bytes], None], Tracer | None], JournalingLauncher]
    too_large: tuple[type[Exception], ...]


@cache
def place_of(device: Device) -> Place:
    """Where a backend on this kind of device runs. Its arena belongs to the process: cases use its memory in turn."""
    return _gpu() if device is Device.CUDA else _host()


def _host() -> Place:
    arena = Arena()
    return Place(
        device=torch.device("cpu"),
        memory=lambda guard, outputs: GuardedMemory(arena, guard, outputs),
        plain=PlainMemory,
        launcher=JournalingLauncher,
        # Address space is plentiful: that it ran out is the harness's own fault.
        too_large=(),
    )


def _gpu() -> Place:
    # Imported only where a worker has a GPU.
    from attnfuzz.harness.inside.gpu_launches import CudaGraph, CudaStopwatch  # noqa: PLC0415
    from attnfuzz.harness.memory.cuda.arena import CudaArena  # noqa: PLC0415
    from attnfuzz.harness.memory.cuda.memory import CudaMemory, PlainCudaMemory  # noqa: PLC0415
    from attnfuzz.kernels.gpu import guards  # noqa: PLC0415

    arena = CudaArena()

    def launcher(memory: PlacedMemory, write: Callable[[bytes], None], tracer: Tracer | None) -> JournalingLauncher:
        return JournalingLauncher(
            memory, write, tracer, stopwatch=CudaStopwatch(), new_graph=CudaGraph, failed_launch=guards.failed_launch
        )

    return Place(
        device=arena.device,
        memory=lambda guard, outputs: CudaMemory(arena, guard, outputs),
        plain=lambda outputs: PlainCudaMemory(outputs, arena.device),
        launcher=launcher,
        # Of what a GPU has, other processes may take any part.
        too_large=(OutOfMemory, torch.OutOfMemoryError),
    )
