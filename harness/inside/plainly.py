"""Running cases in memory without guards, for tools that watch a whole process."""

from collections.abc import Callable

import torch

from attnfuzz.harness.backends.registry import load
from attnfuzz.harness.inside.cuda_worker import create_context
from attnfuzz.harness.inside.execute import Execution, backend_of
from attnfuzz.harness.inside.places import place_of
from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.interface.toolchain import toolchains
from attnfuzz.reference.device import Device


def begin(*names: str) -> None:
    """Create the CUDA context, if one is needed, and load the needs of the named backends.

    Raises GpuGone or CannotBegin.
    """
    if any(load(name).capability.device is Device.CUDA for name in names):
        create_context()
    for name in names:
        backend_of(name)
    for toolchain in toolchains():
        toolchain.settle()


def run(task: Task, write: Callable[[bytes], None], *, unwritten: bool) -> Verdict:
    """Run a case in memory without guards, and wait for the device.

    With `unwritten`, tensors on a GPU that kernels have to write, or must not read, stay as allocated.
    """
    backend = backend_of(task.backend)
    place = place_of(backend.capability.device)
    memory: PlacedMemory
    if unwritten and backend.capability.device is Device.CUDA:
        from attnfuzz.harness.memory.cuda.memory import UnwrittenCudaMemory  # noqa: PLC0415 - on a GPU alone

        memory = UnwrittenCudaMemory(task.case.outputs, place.device)
    else:
        memory = place.plain(task.case.outputs)
    verdict = Execution(task, write, memory=memory, backend=backend).run()
    if backend.capability.device is Device.CUDA:
        torch.cuda.synchronize()
    return verdict
