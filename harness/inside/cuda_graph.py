"""Graphs on a GPU: CUDA keeps the launches, and a replay runs what it kept."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import torch

from attnfuzz.harness.inside.launcher import JournalingLauncher, Launched

_MOST_RESERVED = 1 << 30
"""Bytes of torch's allocator beyond which a capture has it give back what the pools of dead graphs hold."""


class CudaGraph:
    """A torch.cuda.CUDAGraph behind the interface of `RecordedGraph`, with a pool of its own for what kernels allocate.

    The launches are captured at the end of the `with` block, one behind the other: what a session does between them,
    like filling a workspace, happens once and is no part of the graph, as on the CPU.
    """

    def __init__(self, launcher: JournalingLauncher) -> None:
        self._launcher = launcher
        # Their tensors stay alive for as long as the graph may read and write them.
        self._launches: list[Launched] = []
        self._graph = torch.cuda.CUDAGraph()

    def record(self, launched: Launched) -> None:
        """Keep one launch."""
        self._launches.append(launched)

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
