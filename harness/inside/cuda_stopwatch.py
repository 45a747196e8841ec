"""Sees launches on a GPU to their end with one wait, which comes after the last of them."""

import time
from collections.abc import Callable

import torch

from attnfuzz.harness.workers import sticky
from attnfuzz.kernels.gpu import guards

_GLANCE = 20e-6
"""Seconds between two looks at whether the GPU is done: the driver's own wait would keep a core busy."""

_LONG = 1.0
"""Seconds after which somebody is told what the GPU is at, in case that it never ends."""


class CudaStopwatch:
    """A `Stopwatch` on the current device and stream.

    A launch is not held back until what was queued before it is done, since each wait costs what other processes on the
    GPU take meanwhile. So that a fault is blamed on the launch whose it is, the GPU says when it reaches a launch and
    when it leaves it, in memory of the host, which outlives the device's faults.
    """

    at_once = False

    def __init__(self) -> None:
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
