"""The way to a kernel in a worker: on record before it runs, checked after it, recorded while a graph captures."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from attnfuzz.harness.failures import Kind, Observation
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.harness.workers.journal import LaunchRecord
from attnfuzz.kernels.backend import Op

Scalar = int | float | str | bool | None


class Tracer(Protocol):
    """Somebody who is shown every launch, before it runs and after."""

    def begin_step(self, index: int, mode: str) -> None:
        """A step begins."""
        ...

    def launch(self, op: Op, arguments: dict[str, Any]) -> None:
        """A call is about to be launched."""
        ...

    def returned(self) -> None:
        """The call has returned."""
        ...


class RecordedGraph:
    """A CUDA graph's semantics on the CPU: scalars are frozen at capture, tensors are live at replay."""

    def __init__(self, launcher: "JournalingLauncher") -> None:
        self._launcher = launcher
        self._launches: list[tuple[Op, dict[str, Any]]] = []

    def record(self, op: Op, arguments: dict[str, Any]) -> None:
        """Keep one launch."""
        self._launches.append((op, arguments))

    def replay(self) -> None:
        """Launch again what was recorded."""
        for op, arguments in self._launches:
            self._launcher.launch(op, **arguments)


class JournalingLauncher:
    """Launches kernels for one case.

    `kernel` is the entry point launched last, `observations` what its checks found, `kernel_seconds` the time spent in
    kernels. A `tracer` is shown every launch.
    """

    def __init__(self, memory: GuardedMemory, write: Callable[[bytes], None], tracer: Tracer | None = None) -> None:
        self._memory = memory
        self._write = write
        self._tracer = tracer
        self._recording: RecordedGraph | None = None
        self._step, self._mode = -1, ""
        self.kernel = ""
        self.observations: list[Observation] = []
        self.kernel_seconds = 0.0

    def begin_step(self, index: int, mode: str) -> None:
        """Say which step the following launches belong to."""
        self._step, self._mode, self.kernel, self.observations = index, mode, "", []
        if self._tracer is not None:
            self._tracer.begin_step(index, mode)

    def launch(self, op: Op, /, **arguments: Any) -> Any:
        """Call `op`, or record it while a graph captures."""
        if self._recording is not None:
            self._recording.record(op, arguments)
            return None
        self.kernel = op.name
        self._write(self._record(op, arguments).encode())
        if self._tracer is not None:
            self._tracer.launch(op, arguments)
        read, written = split(op, arguments)
        seal = self._memory.seal(read, writable=written)
        start = time.perf_counter()
        try:
            return op.function(**arguments)
        finally:
            self.kernel_seconds += time.perf_counter() - start
            if self._tracer is not None:
                self._tracer.returned()
            self.observations += [
                Observation(
                    kind=Kind.INPUT_MUTATED,
                    place=name,
                    message=f"{op.name} changed its input {name}, first at element {element}",
                    step=self._step,
                    mode=self._mode,
                    kernel=op.name,
                )
                for name, element in seal.broken()
            ]

    @contextmanager
    def capture(self) -> Iterator[RecordedGraph]:
        """Record launches instead of running them."""
        graph = RecordedGraph(self)
        self._recording = graph
        try:
            yield graph
        finally:
            self._recording = None

    def _record(self, op: Op, arguments: dict[str, Any]) -> LaunchRecord:
        scalars = {name: value for name, value in arguments.items() if isinstance(value, Scalar)}
        return LaunchRecord(
            step=self._step, mode=self._mode, kernel=op.name, scalars=scalars, tensors=self._memory.allocations()
        )


def split(op: Op, arguments: dict[str, Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The tensors that `op` must leave as they are, and those that it may write."""
    read: list[torch.Tensor] = []
    written: list[torch.Tensor] = []
    for name, value in arguments.items():
        tensors = value if isinstance(value, tuple | list) else (value,)
        chosen = written if name in op.writes else read
        chosen += [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return read, written
