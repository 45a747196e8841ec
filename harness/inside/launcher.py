"""Launches in a worker: journaled before, checked after, recorded while a graph captures."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import NoneType
from typing import Any, NamedTuple, Protocol

import torch

from attnfuzz.harness.inside.aliases import Aliases
from attnfuzz.harness.memory.allocation import Allocation
from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.printable import bounded, label
from attnfuzz.harness.workers.journal import LaunchRecord
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.interface.transfers import Pending

Scalar = int | float | str | bool | None
# Many times as fast as the union for isinstance.
_SCALARS = int, float, str, NoneType

_MOST_SEALED = 64 << 20
"""Bytes of sealed inputs above which launches are awaited, because each seal keeps a copy until then."""


class Launched(NamedTuple):
    """A kernel and the arguments with which it is called. The kernel itself gets aliases of their tensors."""

    op: Op
    arguments: dict[str, Any]

    def call(self, aliases: Aliases) -> Any:
        """Call the kernel."""
        return self.op.function(**{name: aliases.of(value) for name, value in self.arguments.items()})


class Tracer(Protocol):
    """Traces every launch, before and after; those of a backend's own code only `with_own`, and before."""

    with_own: bool

    def begin_step(self, index: int, mode: str, *, related: bool = False) -> None:
        """Note that a step of a case begins, or of its `related` case."""
        ...

    def begin_again(self) -> None:
        """Note that the step begins again, after a call was rejected."""
        ...

    def end(self) -> None:
        """Note that the calls so far have failed: no others matter."""
        ...

    def launch(self, op: Op, arguments: dict[str, Any]) -> None:
        """Note that a call is about to be launched."""
        ...

    def returned(self, result: Any = None, *, raised: bool = False) -> None:
        """Note that the call has returned or raised."""
        ...

    def captured(self, graph: object, launches: Sequence[tuple[Op, dict[str, Any]]]) -> None:
        """Note that calls are about to be captured into a graph."""
        ...

    def replayed(self, graph: object) -> bool:
        """Note that a graph is about to be replayed. Returns False if its calls are to be traced one by one."""
        ...


class LaunchError(RuntimeError):
    """The harness could not journal a launch, which is not a kernel's fault."""


class RecordedGraph:
    """A CUDA graph's semantics on the CPU: scalars are frozen at capture, tensors are live at replay."""

    def __init__(self, launcher: "JournalingLauncher") -> None:
        self._launcher = launcher
        self._launches: list[Launched] = []

    def record(self, launched: Launched) -> None:
        """Record one launch."""
        self._launches.append(launched)

    def all_of_it(self) -> AbstractContextManager[None]:
        """Capture all device work of a block. Raises NotImplementedError here, because only launches are recorded."""
        raise NotImplementedError("on the CPU launches alone are recorded")

    def finish(self) -> None:
        """Capture the recorded launches. Does nothing here: the record is the graph."""

    def replay(self) -> None:
        """Repeat the captured launches."""
        with self._launcher.replaying(self):
            for op, arguments in self._launches:
                self._launcher.launch(op, **arguments)

    @property
    def launches(self) -> Sequence[Launched]:
        """The recorded launches."""
        return self._launches


class Gate(Protocol):
    """Keeps a device behind the host."""

    def close(self) -> None:
        """Hold work queued from now on."""
        ...

    def open(self) -> None:
        """Release the held work."""
        ...


class Stopwatch:
    """Times launches and waits for them. `at_once`: kernels have run when their call returns."""

    at_once = True

    def __init__(self) -> None:
        self._started = self._seconds = 0.0

    def start(self) -> None:
        """Note that a launch begins."""
        self._started = time.perf_counter()

    def stop(self) -> None:
        """Note that the launch is queued."""
        self._seconds += time.perf_counter() - self._started

    def wait(self, tell: Callable[[int | None], None]) -> float:
        """Wait until all queued work is done. Returns the seconds of the launches since the last wait.

        Does not return if the device broke. Before this process exits, and during long waits, `tell` is called with the
        index of the device's current launch, or None between launches.
        """
        del tell
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class _Caller(NamedTuple):
    """Return the engine's line after the last launch of a kernel, and whether it writes part of the step's output."""

    words: str
    answers: bool


class _Passed(NamedTuple):
    """The allocation behind a tensor that is passed to a launch, and whether the kernel may write that tensor."""

    allocation: Allocation
    writable: bool


@dataclass
class _Unseen:
    """A launch not awaited yet: its journal entry, observation, and changed inputs, if they could be compared."""

    entry: bytes
    kernel: str
    observation: Callable[..., Observation]
    broken: Pending[list[tuple[str, int]]] | None = None


class JournalingLauncher:
    """Launches kernels for one case. Their effects are known after `see_through`.

    Attributes of the current step: `kernel` is the entry point launched last, `answering` the last one that is no plan,
    `raised` its exception, `observations` the findings of launch checks, `broken` the reported breaches of
    preconditions, `way` how a server reaches the launches, if the backend says so, and `launched` its launches, None if
    they are not kept. `kernel_seconds` is the time spent in kernels, which get the tensors of `aliases`. Arguments stay
    alive until their launch is awaited, unless a `gate` keeps the device behind: a server that runs ahead drops tensors
    it no longer needs. `soil` is called before each kernel. `run` is journaled as `LaunchRecord.run`. A `tracer` gets
    every launch, `stopwatch` awaits launches, and `new_graph` creates the graph of a capture. `failed_launch` returns
    and clears the runtime's error of a failed launch, "" if none.
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
        self.soil: Callable[[], None] = lambda: None
        self.aliases = Aliases()
        self._sealed = 0
        self._replays = False
        self.run = self.way = self._caller = ""
        self._callers: dict[str, _Caller] = {}
        self.kernel = self.answering = ""
        self.raised: Exception | None = None
        self.observations: list[Observation] = []
        self.broken: list[Observation] = []
        self.launched: list[Launched] | None = None
        self.kernel_seconds = 0.0

    def begin_step(self, index: int, mode: str) -> None:
        """Start a step."""
        self._step, self._mode, self._call = index, mode, -1
        self.raised, self.observations, self.broken, self._reported = None, [], [], []
        self.kernel = self.answering = self.way = self._caller = ""
        self._callers = {}
        if self.launched is not None:
            self.launched = []
        if self._tracer is not None:
            self._tracer.begin_step(index, mode, related=bool(self.run))

    def make_again(self) -> None:
        """Begin the step's trace again, unless the calls so far have failed."""
        if self._tracer is not None and self.observations:
            self._tracer.end()
        elif self._tracer is not None:
            self._tracer.begin_again()

    def launch(self, op: Op, /, **arguments: Any) -> Any:
        """Call `op`, or record it while a graph captures.

        Raises:
            LaunchError: the launch could not be journaled.
            ValueError: an argument lies outside of guarded memory.
        """
        launched = Launched(op, arguments)
        if self._capturing is not None:
            self._capturing.record(launched)
            self.announce([launched])
            self.soil()
            return launched.call(self.aliases)
        if self._recording is not None:
            self._recording.record(launched)
            return None
        return self.run_sealed([launched], partial(launched.call, self.aliases))

    def reached_by(self, words: str) -> None:
        """Set how a server reaches the following launches of this step."""
        self.way = bounded(words)

    def ways(self) -> Callable[[str], str]:
        """Return a function that says how a server reaches a kernel of this step, and from which line.

        An output may come from any answering kernel, because those of one step write different rows.
        """
        way, callers = self.way, self._callers

        def of(kernel: str) -> str:
            caller = callers.get(kernel, _Caller("", answers=False))
            beside = {name: each for name, each in callers.items() if caller.answers and each.answers and each.words}
            others = (f"{name} {each.words}" for name, each in beside.items() if name != kernel)
            return "; ".join(filter(None, (way, caller.words, *others)))

        return of

    def called_from(self, words: str) -> None:
        """Set the line of an engine that makes the next launch."""
        self._caller = bounded(words)

    def report(self, place: str, text: str) -> None:
        """Report that the next launch breaks a precondition; it is still launched."""
        self._reported.append((label(place), bounded(text)))

    @contextmanager
    def capture(self) -> Iterator[RecordedGraph]:
        """Record launches instead of running them, for a graph created at the end."""
        graph = self._new_graph(self)
        self._recording = graph
        try:
            yield graph
        finally:
            self._recording = None
        if self._tracer is not None:
            self._tracer.captured(graph, [each for each in graph.launches if not each.op.own])
        graph.finish()

    @contextmanager
    def replaying(self, graph: RecordedGraph) -> Iterator[None]:
        """Trace the launches of the block as a replay, if the graph was traced."""
        if self._tracer is not None:
            self._replays = self._tracer.replayed(graph)
        try:
            yield
        finally:
            self._replays = False

    @contextmanager
    def capture_all(self) -> Iterator[RecordedGraph]:
        """Capture the block's device work. Launches are journaled, and called at once."""
        graph = self._new_graph(self)
        self._capturing = graph
        try:
            with graph.all_of_it():
                yield graph
        finally:
            self._capturing = None

    def run_sealed(self, launches: Sequence[Launched], work: Callable[[], Any]) -> Any:
        """Do `work`, which makes these launches, journaled and with all inputs sealed. Raises like `launch`."""
        if self.launched is not None:
            self.launched += launches
        passed = self._passed(launches)
        written = {allocation.address for allocation, writable in passed if writable}
        inputs = {each.address: each for each, _ in passed if each.address not in written}.values()
        seal = self._memory.seal(inputs)
        self._sealed += sum(each.nbytes for each in inputs)
        entry = self._announce(launches, passed)
        self._show(launches)
        # Clear an error of earlier launches.
        self._failed_launch()
        launch = _Unseen(entry, self.kernel, self.observation(launches))
        self._unseen.append(launch)
        if self.gate is None:
            self._kept += launches
        elif not all(op.plans and op.helps for op, _ in launches):
            # Making an object may wait for the device.
            self.gate.close()
        made, failed = None, False
        self.soil()
        try:
            self._stopwatch.start()
            result = made = work()
        except Exception as error:
            self.raised, failed = error, True
            raise
        else:
            self.notice_failed_launch(launches)
            return result
        finally:
            self._stopwatch.stop()
            try:
                launch.broken = seal.broken()
            finally:
                # Even if a broken device made the comparison fail.
                if self._stopwatch.at_once or self._tracer is not None or self._sealed > _MOST_SEALED:
                    self.see_through()
            if self._tracer is not None and not all(op.own for op, _ in launches):
                self._tracer.returned(made, raised=failed)

    def observation(self, launches: Sequence[Launched] = ()) -> Callable[..., Observation]:
        """Return a function that makes observations of the step's last launch, or of these launches.

        Its remaining parameters are kind, place and message.
        """
        return partial(
            Observation, step=self._step, mode=self._mode, kernel=self.kernel, call=self._known_call(launches)
        )

    def see_through(self) -> None:
        """Wait for all launches so far, and observe changed inputs. Doesn't return if the device broke."""
        unseen, self._unseen, self._sealed = self._unseen, [], 0
        kept, self._kept = self._kept, []
        self.let_go()

        def tell(at: int | None) -> None:
            # A fault between two launches is not a kernel's.
            self._write(b"" if at is None else unseen[at].entry)

        self.kernel_seconds += self._stopwatch.wait(tell)
        del kept
        for each in unseen:
            # Nothing is left to wait for: each wait of torch's takes as long as a launch.
            for name, element in each.broken.read() if each.broken else ():
                changed = f"{each.kernel} changed its input {name}, first at element {element}"
                self.observations.append(each.observation(kind=Kind.INPUT_MUTATED, place=name, message=changed))

    def let_go(self) -> None:
        """Release work held by the gate."""
        if self.gate is not None:
            self.gate.open()

    def before_capture(self) -> None:
        """Queue everything that is not part of the graph, and release held work."""
        self._memory.flush()
        self.let_go()

    def announce(self, launches: Sequence[Launched]) -> None:
        """Journal launches before they run, with their tensors. A fault is only blamed on these tensors.

        Among launches that run as one, the culprit is unknown. Raises like `launch`.
        """
        self._announce(launches, self._passed(launches))

    def _passed(self, launches: Sequence[Launched]) -> list[_Passed]:
        tensors = [(op, name, tensor) for op, arguments in launches for name, tensor in tensors_of(arguments)]
        allocations = self._memory.on_record((name, tensor) for _, name, tensor in tensors)
        # Memory without a record has no allocations.
        return [
            _Passed(allocation, name in op.writes)
            for (op, name, _), allocation in zip(tensors, allocations, strict=False)
        ]

    def _announce(self, launches: Sequence[Launched], passed: Sequence[_Passed]) -> bytes:
        """Journal launches. Returns the entry."""
        self._call += len(launches)
        self.kernel = " + ".join(dict.fromkeys(label(op.name) for op, _ in launches))
        if not self.answering or not all(op.plans for op, _ in launches):
            self.answering = self.kernel
        caller, self._caller = self._caller, ""
        self._callers[self.kernel] = _Caller(caller, answers=any("out" in op.writes for op, _ in launches))
        reported: list[tuple[str, str]] = []
        if self._reported and not all(op.own for op, _ in launches):
            # Contracts belong to entry points, not to a backend's own code before them.
            reported, self._reported = self._reported, []
        for place, text in reported:
            breach = f"a call of {self.kernel} breaks its contract: {text}"
            broken = self.observation(launches)(kind=Kind.CONTRACT_BROKEN, place=place, message=breach)
            self.broken.append(broken)
        record = LaunchRecord(
            step=self._step,
            mode=self._mode,
            kernel=self.kernel,
            scalars={
                label(name): _on_one_line(value)
                for _, arguments in launches
                for name, value in arguments.items()
                if isinstance(value, _SCALARS)
            },
            tensors=list({(each.name, each.address): each for each, _ in passed}.values()),
            call=self._known_call(launches),
            run=self.run,
            way="; ".join(filter(None, (self.way, caller))),
            broken=tuple(text for _, text in reported),
        )
        with self._on_record():
            entry = record.encode()
            self._write(entry)
        return entry

    def notice_failed_launch(self, launches: Sequence[Launched]) -> None:
        """Observe a kernel that failed to launch, and so never ran, although its call raised nothing."""
        error = self._failed_launch()
        if error:
            hidden = f"{self.kernel} did not report the error of its own launch, {error}"
            observation = self.observation(launches)
            self.observations.append(observation(kind=Kind.RAISED, place=error.partition(":")[0], message=hidden))

    def _show(self, launches: Sequence[Launched]) -> None:
        if self._tracer is not None and not self._replays:
            with self._on_record():
                for op, arguments in launches:
                    if self._tracer.with_own or not op.own:
                        self._tracer.launch(op, arguments)

    @contextmanager
    def _on_record(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise LaunchError(f"the launch of {self.kernel} could not be journaled: {error}") from error

    def _known_call(self, launches: Sequence[Launched]) -> int:
        return self._call if len(launches) == 1 else -1


def _on_one_line(value: Scalar) -> Scalar:
    """Return a scalar for the journal: of bounded length, because JSON has integers of 64 bits."""
    if isinstance(value, str):
        return label(value)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        return f"an integer of {value.bit_length()} bits"
    return value


def tensors_of(arguments: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor among a launch's arguments, also in nested sequences, with its argument's name."""
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (tuple, list)):
            for item in value:
                yield from tensors_of({name: item})
