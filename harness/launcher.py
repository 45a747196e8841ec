"""The way to a kernel in a worker: on record before it runs, checked after it, recorded while a graph captures."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from attnfuzz.harness.failures import Kind, Observation
from attnfuzz.harness.memory.plain import AnyMemory
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


class LaunchError(RuntimeError):
    """The harness itself could not put a launch on record: no fault of a kernel's."""


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

    `kernel` is the entry point launched last in a step, `raised` what it raised, `observations` what the checks of the
    step's launches found, `kernel_seconds` the time spent in kernels. `run` goes on record as `LaunchRecord.run`. A
    `tracer` is shown every launch.
    """

    def __init__(self, memory: AnyMemory, write: Callable[[bytes], None], tracer: Tracer | None = None) -> None:
        self._memory = memory
        self._write = write
        self._tracer = tracer
        self._recording: RecordedGraph | None = None
        self._step, self._mode, self._call = -1, "", -1
        self.run = ""
        self.kernel = ""
        self.raised: Exception | None = None
        self.observations: list[Observation] = []
        self.kernel_seconds = 0.0

    def begin_step(self, index: int, mode: str) -> None:
        """Say which step the following launches belong to."""
        self._step, self._mode, self._call = index, mode, -1
        self.kernel, self.raised, self.observations = "", None, []
        if self._tracer is not None:
            self._tracer.begin_step(index, mode)

    def launch(self, op: Op, /, **arguments: Any) -> Any:
        """Call `op`, or record it while a graph captures.

        Raises:
            LaunchError: the launch could not be put on record.
            ValueError: an argument lies outside of guarded memory.

        """
        if self._recording is not None:
            self._recording.record(op, arguments)
            return None
        self.kernel = op.name
        self._call += 1
        tensors = list(tensors_of(arguments))
        read = [tensor for name, tensor in tensors if name not in op.writes]
        seal = self._memory.seal(read, writable=[tensor for name, tensor in tensors if name in op.writes])
        self._announce(op, arguments, tensors)
        start = time.perf_counter()
        try:
            return op.function(**arguments)
        except Exception as error:
            self.raised = error
            raise
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
                    call=self._call,
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

    def _announce(self, op: Op, arguments: dict[str, Any], tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Put a launch on record before it runs, with the tensors that the kernel knows of: no other can be blamed."""
        record = LaunchRecord(
            step=self._step,
            mode=self._mode,
            kernel=op.name,
            scalars={name: value for name, value in arguments.items() if isinstance(value, Scalar)},
            tensors=self._memory.on_record(tensors),
            call=self._call,
            run=self.run,
        )
        try:
            self._write(record.encode())
            if self._tracer is not None:
                self._tracer.launch(op, arguments)
        except Exception as error:
            raise LaunchError(f"the launch of {op.name} could not be put on record: {error}") from error


def tensors_of(arguments: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor that a launch is given, with the name of its argument."""
    for name, value in arguments.items():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, torch.Tensor):
                yield name, item
