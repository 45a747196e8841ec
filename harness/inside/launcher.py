"""The way to a kernel in a worker: on record before it runs, checked after it, recorded while a graph captures."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch

from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.printable import bounded, label
from attnfuzz.harness.workers.journal import LaunchRecord
from attnfuzz.kernels.backend import Op
from attnfuzz.kernels.transfers import Pending, done

Scalar = int | float | str | bool | None

_MOST_SEALED = 64 << 20
"""Bytes of inputs from which on their launches are seen through: each seal is a copy that is kept until then."""


class Launched(NamedTuple):
    """A kernel and the arguments that it is called with."""

    op: Op
    arguments: dict[str, Any]

    def call(self) -> Any:
        """Call it."""
        return self.op.function(**self.arguments)


class Tracer(Protocol):
    """Sees every launch, before it runs and after."""

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
    """A CUDA graph's semantics on the CPU: scalars are frozen at capture, tensors are live at replay.

    Its launcher records every launch of a capture, and finishes it after the last.
    """

    def __init__(self, launcher: "JournalingLauncher") -> None:
        self._launcher = launcher
        self._launches: list[Launched] = []

    def record(self, launched: Launched) -> None:
        """Keep one launch."""
        self._launches.append(launched)

    def all_of_it(self) -> AbstractContextManager[None]:
        """Capture all that a block does on the device. NotImplementedError here: only launches are recorded."""
        raise NotImplementedError("on the CPU launches alone are recorded")

    def finish(self) -> None:
        """Capture what was recorded. Does nothing here: the record is the graph."""

    def replay(self) -> None:
        """Launch again what was captured."""
        for op, arguments in self._launches:
            self._launcher.launch(op, **arguments)


class Gate(Protocol):
    """Keeps a device behind the host."""

    def close(self) -> None:
        """Hold what is queued from now on."""
        ...

    def open(self) -> None:
        """Let go of what was held so far."""
        ...


class Stopwatch:
    """Sees launches to their end on their device: here, kernels that have run when their call returns.

    `at_once` says that they are such kernels.
    """

    at_once = True

    def __init__(self) -> None:
        self._started = self._seconds = 0.0

    def start(self) -> None:
        """What is queued from now on is a launch."""
        self._started = time.perf_counter()

    def stop(self) -> None:
        """What is queued from now on is not the launch any more."""
        self._seconds += time.perf_counter() - self._started

    def wait(self, tell: Callable[[int | None], None]) -> float:
        """Wait until all that was queued is done. Returns the seconds that the launches since the last wait took.

        Does not return if the device broke. Before this process ends, and while it waits for long, `tell` is called
        with the launch that the device is at, the first being 0, or None if it is between two.
        """
        del tell
        seconds, self._seconds = self._seconds, 0.0
        return seconds


@dataclass
class _Unseen:
    """A launch, not waited for yet: its journal entry, how it is observed, and what it changed of its inputs."""

    entry: bytes
    kernel: str
    observation: Callable[..., Observation]
    broken: Pending[list[tuple[str, int]]] = field(default_factory=lambda: done([]))


class JournalingLauncher:
    """Launches kernels for one case. What launches did is known when they were seen through.

    `kernel` is the entry point launched last in a step, `raised` what it raised, `observations` what the checks of the
    step's launches found, `broken` what was reported of them before they ran, `way` how a server comes to make them,
    if the backend says, `kernel_seconds` the time spent in kernels. `launched` are the launches of a step if it is a
    list, None if they are not looked at. What launches were given stays alive until they were seen through, unless a
    `gate` keeps the device behind: a server that runs ahead drops what it needs no more. `run` goes on record as
    `LaunchRecord.run`. A `tracer` is shown every launch, `stopwatch` sees launches to their end, and `new_graph` makes
    the graph of a capture. `failed_launch` says what the device's runtime keeps of a launch that failed, "" if there
    was none, and forgets it.
    """

    def __init__(
        self,
        memory: PlacedMemory,
        write: Callable[[bytes], None],
        tracer: Tracer | None = None,
        *,
        stopwatch: Stopwatch | None = None,
        new_graph: Callable[["JournalingLauncher"], RecordedGraph] = RecordedGraph,
        failed_launch: Callable[[], str] = lambda: "",
    ) -> None:
        self._memory = memory
        self._write = write
        self._tracer = tracer
        self._stopwatch = stopwatch or Stopwatch()
        self._new_graph = new_graph
        self._failed_launch = failed_launch
        self._recording: RecordedGraph | None = None
        self._capturing: RecordedGraph | None = None
        self._step, self._mode, self._call = -1, "", -1
        self._reported: list[tuple[str, str]] = []
        self._unseen: list[_Unseen] = []
        self._kept: list[Launched] = []
        self.gate: Gate | None = None
        self._sealed = 0
        self.run = self.way = ""
        self.kernel = ""
        self.raised: Exception | None = None
        self.observations: list[Observation] = []
        self.broken: list[Observation] = []
        self.launched: list[Launched] | None = None
        self.kernel_seconds = 0.0

    def begin_step(self, index: int, mode: str) -> None:
        """Say which step the following launches belong to."""
        self._step, self._mode, self._call = index, mode, -1
        self.kernel, self.raised, self.observations, self.broken, self._reported = "", None, [], [], []
        self.way = ""
        if self.launched is not None:
            self.launched = []
        if self._tracer is not None:
            self._tracer.begin_step(index, mode)

    def launch(self, op: Op, /, **arguments: Any) -> Any:
        """Call `op`, or record it while a graph captures.

        Raises:
            LaunchError: the launch could not be put on record.
            ValueError: an argument lies outside of guarded memory.

        """
        launched = Launched(op, arguments)
        if self._capturing is not None:
            self._capturing.record(launched)
            self.announce([launched])
            return launched.call()
        if self._recording is not None:
            self._recording.record(launched)
            return None
        return self.run_sealed([launched], launched.call)

    def reached_by(self, words: str) -> None:
        """Say how a server comes to make the launches that follow in this step."""
        self.way = bounded(words)

    def report(self, place: str, text: str) -> None:
        """Remember that the next launch breaks a precondition: it is launched all the same."""
        self._reported.append((label(place), bounded(text)))

    @contextmanager
    def capture(self) -> Iterator[RecordedGraph]:
        """Record launches instead of running them; the graph is made of them at the end."""
        graph = self._new_graph(self)
        self._recording = graph
        try:
            yield graph
        finally:
            self._recording = None
        graph.finish()

    @contextmanager
    def capture_all(self) -> Iterator[RecordedGraph]:
        """Capture what the block does, launches among it: each is on record, and called at once."""
        graph = self._new_graph(self)
        self._capturing = graph
        try:
            with graph.all_of_it():
                yield graph
        finally:
            self._capturing = None

    def run_sealed(self, launches: Sequence[Launched], work: Callable[[], Any]) -> Any:
        """Do `work`, which is these launches, on record and with all of their inputs sealed. Raises as `launch`."""
        if self.launched is not None:
            self.launched += launches
        tensors = [(op, name, tensor) for op, arguments in launches for name, tensor in tensors_of(arguments)]
        written = [tensor for op, name, tensor in tensors if name in op.writes]
        inputs = [tensor for op, name, tensor in tensors if name not in op.writes]
        seal = self._memory.seal(inputs, writable=written)
        self._sealed += sum(tensor.nbytes for tensor in inputs)
        entry = self.announce(launches)
        self._show(launches)
        # An error that was not asked for until now is not of this launch.
        self._failed_launch()
        launch = _Unseen(entry, self.kernel, self.observation(launches))
        self._unseen.append(launch)
        if self.gate is None:
            self._kept += launches
        else:
            self.gate.close()
        try:
            self._stopwatch.start()
            result = work()
        except Exception as error:
            self.raised = error
            raise
        else:
            self.notice_failed_launch(launches)
            return result
        finally:
            self._stopwatch.stop()
            try:
                launch.broken = seal.broken()
            finally:
                # Also if a broken device made the comparison fail.
                if self._stopwatch.at_once or self._tracer is not None or self._sealed > _MOST_SEALED:
                    self.see_through()
            if self._tracer is not None and not all(op.own for op, _ in launches):
                self._tracer.returned()

    def observation(self, launches: Sequence[Launched] = ()) -> Callable[..., Observation]:
        """What is observed of the step's last launch, or of these, but for its kind, place and message."""
        return partial(
            Observation, step=self._step, mode=self._mode, kernel=self.kernel, call=self._known_call(launches)
        )

    def see_through(self) -> None:
        """Wait for all launches so far, and observe what they did. No return if the device broke."""
        unseen, self._unseen, self._sealed = self._unseen, [], 0
        kept, self._kept = self._kept, []
        self.let_go()

        def tell(at: int | None) -> None:
            # A fault between two launches is no kernel's.
            self._write(b"" if at is None else unseen[at].entry)

        self.kernel_seconds += self._stopwatch.wait(tell)
        del kept
        for each in unseen:
            for name, element in each.broken.result():
                changed = f"{each.kernel} changed its input {name}, first at element {element}"
                self.observations.append(each.observation(kind=Kind.INPUT_MUTATED, place=name, message=changed))

    def let_go(self) -> None:
        """Let the device begin what was held behind the gate: it is waited for."""
        if self.gate is not None:
            self.gate.open()

    def announce(self, launches: Sequence[Launched]) -> bytes:
        """Put launches on record before they run, with the tensors that they know of: no other can be blamed.

        Of several that run as one, it is not known which it was. Returns the journal entry.
        """
        self._call += len(launches)
        self.kernel = " + ".join(dict.fromkeys(label(op.name) for op, _ in launches))
        reported: list[tuple[str, str]] = []
        if not all(op.own for op, _ in launches):
            # Contracts are those of entry points, not of a backend's own code before it.
            reported, self._reported = self._reported, []
        observation = self.observation(launches)
        for place, text in reported:
            breach = f"a call of {self.kernel} breaks its contract: {text}"
            broken = observation(kind=Kind.CONTRACT_BROKEN, place=place, message=breach)
            self.broken.append(broken)
        record = LaunchRecord(
            step=self._step,
            mode=self._mode,
            kernel=self.kernel,
            scalars={
                label(name): _on_one_line(value)
                for _, arguments in launches
                for name, value in arguments.items()
                if isinstance(value, Scalar)
            },
            tensors=self._memory.on_record(each for _, arguments in launches for each in tensors_of(arguments)),
            call=self._known_call(launches),
            run=self.run,
            way=self.way,
            broken=tuple(text for _, text in reported),
        )
        with self._on_record():
            entry = record.encode()
            self._write(entry)
        return entry

    def notice_failed_launch(self, launches: Sequence[Launched]) -> None:
        """After calls that raised nothing: observe that a kernel of theirs could not be launched, and so never ran."""
        error = self._failed_launch()
        if error:
            hidden = f"{self.kernel} did not tell of the error of its own launch, {error}"
            observation = self.observation(launches)
            self.observations.append(observation(kind=Kind.RAISED, place=error.partition(":")[0], message=hidden))

    def _show(self, launches: Sequence[Launched]) -> None:
        if self._tracer is not None:
            with self._on_record():
                for op, arguments in launches:
                    if not op.own:
                        self._tracer.launch(op, arguments)

    @contextmanager
    def _on_record(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise LaunchError(f"the launch of {self.kernel} could not be put on record: {error}") from error

    def _known_call(self, launches: Sequence[Launched]) -> int:
        return self._call if len(launches) == 1 else -1


def _on_one_line(value: Scalar) -> Scalar:
    """A scalar as it goes on record: of any length it would not fit, and JSON has integers of 64 bits."""
    if isinstance(value, str):
        return label(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return f"an integer of {value.bit_length()} bits"
    return value


def tensors_of(arguments: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor that a launch is given, also in sequences within sequences, with the name of its argument."""
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, tuple | list):
            for item in value:
                yield from tensors_of({name: item})
