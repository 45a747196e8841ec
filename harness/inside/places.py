"""Places where cases run: memory, launcher and graphs of the host, or of the worker's single GPU.

A step's output is copied from a GPU bit by bit, NaN payloads included.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from attnfuzz.harness.inside.launcher import Gate, JournalingLauncher, Tracer
from attnfuzz.harness.memory.allocation import extent
from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.guarded import GuardedMemory, PlainMemory
from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.harness.memory.slabs import NoAddresses, OutOfMemory
from attnfuzz.kernels.interface import transfers
from attnfuzz.kernels.interface.backend import JudgedOnHost, Output, Result
from attnfuzz.kernels.interface.transfers import Pending, done, to_host
from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.device import Device


@dataclass(frozen=True)
class Place:
    """A device, and this process's access to it.

    `memory` creates the guarded memory of a case, `plain` memory without guards, and `launcher` its launcher.
    `too_large` are the errors of a case that does not fit into memory, which is not a failure. `late` keeps the device
    behind the host for a block, and `soil` fills the memory that each kernel gets from the last one.
    """

    device: torch.device
    memory: Callable[[Guard, Outputs], PlacedMemory]
    plain: Callable[[Outputs], PlacedMemory]
    launcher: Callable[[PlacedMemory, Callable[[bytes], None], Tracer | None], JournalingLauncher]
    too_large: tuple[type[Exception], ...]
    late: Callable[[], AbstractContextManager[Gate | None]] = nullcontext
    soil: Callable[[], None] = lambda: None


@cache
def place_of(device: Device) -> Place:
    """Return the place for this kind of device. The process has one arena, which cases use in turn."""
    return _gpu() if device is Device.CUDA else _host()


def _host() -> Place:
    arena = Arena()
    return Place(
        device=torch.device("cpu"),
        memory=lambda guard, outputs: GuardedMemory(arena, guard, outputs),
        plain=PlainMemory,
        launcher=JournalingLauncher,
        # Address space is plentiful unless it is limited. Otherwise, running out is the harness's own fault.
        too_large=(NoAddresses,),
    )


def _gpu() -> Place:
    # Imported only if a worker has a GPU.
    from attnfuzz.harness.inside.gpu_launches import CudaGraph, CudaStopwatch  # noqa: PLC0415
    from attnfuzz.harness.inside.late_device import StreamGate, late  # noqa: PLC0415
    from attnfuzz.harness.memory.cuda.arena import CudaArena  # noqa: PLC0415
    from attnfuzz.harness.memory.cuda.memory import CudaMemory, PlainCudaMemory  # noqa: PLC0415
    from attnfuzz.kernels.cuda import guards  # noqa: PLC0415

    arena = CudaArena()
    events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def launcher(memory: PlacedMemory, write: Callable[[bytes], None], tracer: Tracer | None) -> JournalingLauncher:
        return JournalingLauncher(
            memory,
            write,
            tracer,
            stopwatch=CudaStopwatch(events),
            new_graph=CudaGraph,
            failed_launch=guards.failed_launch,
        )

    return Place(
        device=arena.device,
        memory=lambda guard, outputs: CudaMemory(arena, guard, outputs),
        plain=lambda outputs: PlainCudaMemory(outputs, arena.device),
        launcher=launcher,
        # Other processes may take any part of a GPU's memory.
        too_large=(OutOfMemory, torch.OutOfMemoryError),
        late=partial(late, StreamGate()),
        soil=guards.fill_shared_memory,
    )


_ALIGNMENT = 8
"""Size of the largest element."""


def on_host(output: Result) -> Pending[Result]:
    """Copy an output's tensors to host memory after all queued work, except large keys. Strides and storage are kept.

    A written cache is compared where it is, and attention to one is judged there.
    """
    if isinstance(output, JudgedOnHost):
        everything = Moving(tensor for tensor in tensors_in(output) if not tensor.is_cpu)
        return Pending(everything.wait, lambda: with_tensors(output, everything.of)) if everything else done(output)
    if not isinstance(output, Output):
        return done(output)
    tensors = [output.out, output.lse, output.sinks, *(entry.query for entry in output.attended)]
    keys = [each for entry in output.attended for each in (entry.key, entry.value)]
    if sum(each.nbytes for each in keys) < transfers.STAYS:
        tensors += keys
    moving = Moving(tensor for tensor in tensors if tensor is not None and not tensor.is_cpu)
    if not moving:
        return done(output)

    def moved() -> Result:
        return replace(
            output,
            out=moving.of(output.out),
            lse=None if output.lse is None else moving.of(output.lse),
            sinks=None if output.sinks is None else moving.of(output.sinks),
            attended=tuple(
                replace(entry, query=moving.of(entry.query), key=moving.of(entry.key), value=moving.of(entry.value))
                for entry in output.attended
            ),
        )

    return Pending(moving.wait, moved)


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value, and in the fields of dataclasses and the elements of tuples in it."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from tensors_in(each)
    elif is_dataclass(value):
        for each in fields(value):
            yield from tensors_in(getattr(value, each.name))


def with_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a value in which each of `tensors_in` is replaced by its change; the value itself if none changes."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple):
        found = [with_tensors(each, change) for each in value]
        same = all(new is old for new, old in zip(found, value, strict=True))
        # A named tuple takes its elements one by one.
        return value if same else type(value)(*found) if hasattr(value, "_fields") else tuple(found)
    if not is_dataclass(value):
        return value
    held = {each.name: getattr(value, each.name) for each in fields(value)}
    changed = {name: new for name, old in held.items() if (new := with_tensors(old, change)) is not old}
    return replace(value, **changed) if changed else value  # type: ignore[type-var]


class Moving:
    """Pending copies of tensors, one per storage, since the queries of all requests share one."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        spans: _Spans = {}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            first, end = _span(tensor)
            _, least, most = spans.get(storage.data_ptr(), (storage, first, end))
            spans[storage.data_ptr()] = storage, min(first, least), max(end, most)
        self._copies = _gathered(spans) if _few_bytes_of_a_gpu(spans) else _copied(spans)

    def __len__(self) -> int:
        return len(self._copies)

    def wait(self) -> None:
        """Wait for all copies."""
        for _, copy in self._copies.values():
            copy.wait()

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor in its copied storage, or `tensor` itself if that is not copied."""
        shift, copy = self._copies.get(tensor.untyped_storage().data_ptr(), (0, None))
        if copy is None:
            return tensor
        offset = tensor.storage_offset() + shift // tensor.itemsize
        return torch.empty(0, dtype=tensor.dtype).set_(copy.read(), offset, tensor.shape, tensor.stride())


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the bytes of a storage that a tensor spans, with a start that is aligned for elements of any size.

    A slice without elements, of a tensor with gaps, may be past the end of its storage.
    """
    first = int(tensor.storage_offset())
    end = (first + extent(tensor.shape, tensor.stride())) * tensor.itemsize
    whole = tensor.untyped_storage().nbytes()
    return min(first * tensor.itemsize // _ALIGNMENT * _ALIGNMENT, whole), min(end, whole)


_Spans = dict[int, tuple[torch.UntypedStorage, int, int]]
"""By the address of a storage: the storage, and the start and end of the bytes to copy."""

_Copies = dict[int, tuple[int, Pending[torch.UntypedStorage]]]
"""By the same address: the distance by which its bytes are moved, and the copy."""

_MOST_GATHERED = 1 << 20


def _few_bytes_of_a_gpu(spans: _Spans) -> bool:
    on_gpu = bool(spans) and all(storage.device.type == "cuda" for storage, _, _ in spans.values())
    return on_gpu and sum(end - first for _, first, end in spans.values()) <= _MOST_GATHERED


def _gathered(spans: _Spans) -> _Copies:
    """Return one copy of all."""
    # Imported only if a worker has a GPU.
    from attnfuzz.kernels.cuda import guards  # noqa: PLC0415

    device = next(storage.device for storage, _, _ in spans.values())
    places = [(address + first, end - first) for address, (_, first, end) in spans.items()]
    copies, offsets = guards.gather(places, device)
    copy = copies.then(torch.Tensor.untyped_storage)
    return {
        address: (offset - first, copy) for offset, (address, (_, first, _)) in zip(offsets, spans.items(), strict=True)
    }


def _copied(spans: _Spans) -> _Copies:
    """Return a copy for each."""
    copies = {}
    for address, (storage, first, end) in spans.items():
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        copies[address] = -first, to_host(whole[first:end]).then(torch.Tensor.untyped_storage)
    return copies
