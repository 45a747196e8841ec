"""Launches on a GPU: CUDA graphs, and a stopwatch that waits for many launches at once."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch

from attnfuzz.harness.inside.launcher import JournalingLauncher, Launched, RecordedGraph, Stopwatch
from attnfuzz.harness.workers import sticky
from attnfuzz.kernels.cuda import guards

_MOST_RESERVED = 1 << 30
"""Bytes reserved by torch's allocator above which a capture frees the pools of dead graphs."""


class CudaGraph(RecordedGraph):
    """A torch.cuda.CUDAGraph with a separate memory pool.

    The launches are captured at the end of the `with` block, in sequence. Other work of a session between them, like
    filling a workspace, happens once and is not part of the graph, as on the CPU.
    """

    def __init__(self, launcher: JournalingLauncher) -> None:
        # Keep the launches' tensors alive while the graph may use them.
        super().__init__(launcher)
        self._graph = torch.cuda.CUDAGraph()

    @contextmanager
    def all_of_it(self) -> Iterator[None]:
        """Capture a block. Its copies and computations change inputs of its launches, so none is sealed."""
        self._launcher.before_capture()
        # Relaxed, because libraries may call the driver meanwhile.
        with _without_garbage(), capturing(self._graph, "relaxed"):
            yield
        self._launches = [
            Launched(replace(op, writes=frozenset(arguments)), arguments) for op, arguments in self._launches
        ]

    def finish(self) -> None:
        """Capture the launches, thread-locally. Raises kernels' host errors, and RuntimeError on a failed capture."""
        error = self._capture()
        if error is not None:
            self._launcher.raised = error
            raise error

    def replay(self) -> None:
        """Replay the graph, with all inputs of its launches sealed."""
        with self._launcher.replaying(self):
            self._launcher.run_sealed(self._launches, self._graph.replay)

    def _capture(self) -> Exception | None:
        """Capture, and return the first error: ending a failed capture may raise too, with less information."""
        first: Exception | None = None
        self._launcher.before_capture()
        try:
            with _without_garbage(), capturing(self._graph):
                try:
                    for launched in self._launches:
                        self._launcher.announce([launched])
                        self._launcher.soil()
                        launched.call(self._launcher.aliases)
                        self._launcher.notice_failed_launch([launched])
                except Exception as error:  # noqa: BLE001 - the capture has to end whatever a kernel raises
                    first = error
        except RuntimeError as error:
            first = first or error
        return first


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, errors: str = "thread_local") -> Iterator[None]:
    """Capture launches; `errors` is torch's capture_error_mode.

    Torch's own torch.cuda.graph frees all idle memory each time, including the host's page-locked memory, which copies
    would have to lock again. That takes milliseconds per case.
    """
    torch.cuda.synchronize()
    if torch.cuda.memory_reserved() > _MOST_RESERVED:
        torch.cuda.empty_cache()
    with torch.cuda.stream(_stream()):
        graph.capture_begin(capture_error_mode=errors)
        try:
            yield
        finally:
            graph.capture_end()


@cache
def _stream() -> torch.cuda.Stream:
    """Return the stream of captures, because the default stream can't be captured."""
    return torch.cuda.Stream()


@contextmanager
def _without_garbage() -> Iterator[None]:
    """Disable garbage collection.

    Sessions refer to themselves, so the collector destroys the graphs of earlier cases, at any time; destroying a graph
    during a capture breaks it (PyTorch PR #161037).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_GLANCE = 20e-6
"""Seconds between two polls of the GPU: the driver's own wait would keep a core busy."""

_LONG = 1.0
"""Seconds after which `tell` is called with the current launch, in case it never ends."""


class CudaStopwatch(Stopwatch):
    """A `Stopwatch` on the current device and stream.

    A launch does not wait for the queued ones, since each wait costs a time slice of other processes on the GPU. To
    blame a fault on the right launch, the GPU records when it reaches and leaves a launch, in host memory, which
    survives the device's faults.

    `events` are pairs of events from earlier stopwatches. More are added as needed.
    """

    at_once = False

    def __init__(self, events: list[tuple[torch.cuda.Event, torch.cuda.Event]]) -> None:
        super().__init__()
        # Only on a GPU, and where a context has been created.
        from cuda.bindings import driver  # noqa: PLC0415

        self._driver = driver
        self._events = events
        # Number of launch begins and ends: odd during a launch.
        self._passed = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._address = self._passed.data_ptr()
        self._launches = self._waited = 0

    def start(self) -> None:
        """See `Stopwatch`."""
        place = self._launches - self._waited
        if place == len(self._events):
            self._events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        self._launches += 1
        stream = guards.current_stream()
        self._pass(stream, 2 * self._launches - 1)
        self._events[place][0].record(stream)

    def stop(self) -> None:
        """See `Stopwatch`."""
        stream = guards.current_stream()
        self._events[self._launches - self._waited - 1][1].record(stream)
        self._pass(stream, 2 * self._launches)

    def wait(self, tell: Callable[[int | None], None]) -> float:
        """See `Stopwatch`. On a broken device this process exits. Raises RuntimeError for any other error."""
        events = self._events[: self._launches - self._waited]
        try:
            self._watch(tell)
            sticky.synchronise(lambda: tell(self._at()))
        finally:
            self._waited = self._launches
        milliseconds: float = sum(begin.elapsed_time(end) for begin, end in events)
        return milliseconds / 1e3

    def _pass(self, stream: torch.cuda.Stream, count: int) -> None:
        # If it fails, the context is broken, or no launch is blamed: `wait` finds out.
        self._driver.cuStreamWriteValue32(stream.cuda_stream, self._address, count, 0)

    def _at(self) -> int | None:
        """Return the index of the current launch since the last wait, or None if the GPU is between launches."""
        passed = int(self._passed.item())
        return (passed - 1) // 2 - self._waited if passed % 2 else None

    def _watch(self, tell: Callable[[int | None], None]) -> None:
        """Return when the GPU is done or broken. Until then, report the current launch occasionally."""
        reported: tuple[int | None, ...] = ()
        soon = time.monotonic() + _LONG
        while self._driver.cuStreamQuery(guards.stream())[0] == self._driver.CUresult.CUDA_ERROR_NOT_READY:
            time.sleep(_GLANCE)
            if time.monotonic() > soon:
                soon += _LONG
                at = self._at()
                if reported != (at,):
                    reported = (at,)
                    tell(at)
