"""Sees a launch on a GPU to its end with one wait, which comes after it."""

from collections.abc import Callable

import torch

from attnfuzz.harness.workers import sticky
from attnfuzz.kernels.gpu import guards


class CudaStopwatch:
    """A `Stopwatch` on the current device and stream.

    A launch is not held back until what was queued before it is done, since each wait costs what other processes on the
    GPU take meanwhile. So that a fault in what came before is not blamed on the launch, the GPU says when it reaches
    the launch, in memory of the host, which outlives the device's faults. If it never did, `disown` is called before
    this process ends.
    """

    def __init__(self, disown: Callable[[], None]) -> None:
        # Only on a GPU, and where a context has been created.
        from cuda.bindings import driver  # noqa: PLC0415

        self._driver, self._disown = driver, disown
        self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._reached = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._launches = 0

    def start(self) -> None:
        """As `Stopwatch` says."""
        self._launches += 1
        # If it fails, the context is broken, or the launch counts as not reached: `wait` finds out.
        self._driver.cuStreamWriteValue32(guards.stream(), self._reached.data_ptr(), self._launches, 0)
        self._begin.record()

    def stop(self) -> None:
        """As `Stopwatch` says."""
        self._end.record()

    def wait(self) -> float:
        """As `Stopwatch` says; on a broken device this process ends. RuntimeError for any other error."""
        sticky.synchronise(self._before_leaving)
        milliseconds: float = self._begin.elapsed_time(self._end)
        return milliseconds / 1e3

    def _before_leaving(self) -> None:
        if self._reached.item() != self._launches:
            self._disown()
