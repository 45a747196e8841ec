"""Launches on a GPU: graphs that CUDA keeps, and a stopwatch that waits for many launches at once."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch

from attnfuzz.harness.inside.launcher import JournalingLauncher, Launched, RecordedGraph, Stopwatch
from attnfuzz.harness.workers import sticky
from attnfuzz.kernels.gpu import guards

_MOST_RESERVED = 1 << 30
"""Bytes of torch's allocator beyond which a capture has it give back what the pools of dead graphs hold."""


class CudaGraph(RecordedGraph):
    """A torch.cuda.CUDAGraph, with a pool of its own for what kernels allocate.

    The launches are captured at the end of the `with` block, one behind the other: what a session does between them,
    like filling a workspace, happens once and is no part of the graph, as on the CPU.
    """

    def __init__(self, launcher: JournalingLauncher) -> None:
        # Tensors of the launches stay alive for as long as the graph may read and write them.
        super().__init__(launcher)
        self._graph = torch.cuda.CUDAGraph()

    @contextmanager
    def all_of_it(self) -> Iterator[None]:
        """Capture a block. What is copied and computed in it changes inputs of its launches: none of them is sealed."""
        self._launcher.let_go()
        # Relaxed: what a library asks the driver for on the way is its own business.
        with _without_garbage(), capturing(self._graph, "relaxed"):
            yield
        self._launches = [
            Launched(replace(op, writes=frozenset(arguments)), arguments) for op, arguments in self._launches
        ]

    def finish(self) -> None:
        """Capture the launches. Raises what a kernel's host code raises, and RuntimeError where it can't be captured.

        Captured thread-locally: another thread of the process, like autograd's, may go on using the device.
        """
        error = self._capture()
        if error is not None:
            self._launcher.raised = error
            raise error

    def replay(self) -> None:
        """Launch what CUDA captured, with all inputs of its launches sealed."""
        self._launcher.run_sealed(self._launches, self._graph.replay)

    def _capture(self) -> Exception | None:
        """What went wrong first: ending a capture that has failed may raise as well, and tells less."""
        first: Exception | None = None
        self._launcher.let_go()
        try:
            with _without_garbage(), capturing(self._graph):
                try:
                    for launched in self._launches:
                        self._launcher.announce([launched])
                        launched.call()
                        self._launcher.notice_failed_launch([launched])
                except Exception as error:  # noqa: BLE001 - the capture has to be ended whatever a kernel raises
                    first = error
        except RuntimeError as error:
            first = first or error
        return first


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, errors: str = "thread_local") -> Iterator[None]:
    """Capture what is launched; `errors` is torch's capture_error_mode.

    Torch's own torch.cuda.graph gives all idle memory back each time. That includes the host's page-locked memory,
    which copies would have to lock anew, for milliseconds of each case.
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
    """What captures are made on: the default stream can't be captured."""
    return torch.cuda.Stream()


@contextmanager
def _without_garbage() -> Iterator[None]:
    """Keep the collector of garbage away.

    Sessions refer to themselves, so that it is what destroys the graphs of earlier cases, at any time; a graph that is
    destroyed during a capture breaks it (PyTorch PR #161037).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_GLANCE = 20e-6
"""Seconds between two looks at whether the GPU is done: the driver's own wait would keep a core busy."""

_LONG = 1.0
"""Seconds after which `tell` is called with what the GPU is at, in case that it never ends."""


class CudaStopwatch(Stopwatch):
    """A `Stopwatch` on the current device and stream.

    A launch is not held back until what was queued before it is done, since each wait costs what other processes on the
    GPU take meanwhile. So that a fault is blamed on the launch whose it is, the GPU says when it reaches a launch and
    when it leaves it, in memory of the host, which outlives the device's faults.
    """

    at_once = False

    def __init__(self) -> None:
        super().__init__()
        # Only on a GPU, and where a context has been created.
        from cuda.bindings import driver  # noqa: PLC0415

        self._driver = driver
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        # How often a launch began or ended: odd while the GPU is at one.
        self._passed = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._launches = self._waited = 0

    def start(self) -> None:
        """As `Stopwatch` says."""
        place = self._launches - self._waited
        if place == len(self._events):
            self._events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        self._launches += 1
        self._pass(2 * self._launches - 1)
        self._events[place][0].record()

    def stop(self) -> None:
        """As `Stopwatch` says."""
        self._events[self._launches - self._waited - 1][1].record()
        self._pass(2 * self._launches)

    def wait(self, tell: Callable[[int | None], None]) -> float:
        """As `Stopwatch` says; on a broken device this process ends. RuntimeError for any other error."""
        events = self._events[: self._launches - self._waited]
        try:
            self._watch(tell)
            sticky.synchronise(lambda: tell(self._at()))
        finally:
            self._waited = self._launches
        milliseconds: float = sum(begin.elapsed_time(end) for begin, end in events)
        return milliseconds / 1e3

    def _pass(self, count: int) -> None:
        # If it fails, the context is broken, or nothing is blamed: `wait` finds out.
        self._driver.cuStreamWriteValue32(guards.stream(), self._passed.data_ptr(), count, 0)

    def _at(self) -> int | None:
        """Which of the launches since the last wait the GPU is at; None if it is between two, or at something else."""
        passed = int(self._passed.item())
        return (passed - 1) // 2 - self._waited if passed % 2 else None

    def _watch(self, tell: Callable[[int | None], None]) -> None:
        """Return when the GPU is done or broken; until then tell, now and then, what it has come to."""
        told: tuple[int | None, ...] = ()
        soon = time.monotonic() + _LONG
        while self._driver.cuStreamQuery(guards.stream())[0] == self._driver.CUresult.CUDA_ERROR_NOT_READY:
            time.sleep(_GLANCE)
            if time.monotonic() > soon:
                soon += _LONG
                at = self._at()
                if told != (at,):
                    told = (at,)
                    tell(at)
