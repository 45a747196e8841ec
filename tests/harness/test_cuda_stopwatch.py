"""How a launch on a GPU is timed and waited for, with a GPU that does nothing by itself."""

import ctypes
from collections.abc import Callable

import pytest
import torch

from attnfuzz.harness.cuda_stopwatch import CudaStopwatch
from attnfuzz.harness.workers import sticky
from attnfuzz.kernels.gpu import guards

QUEUE = 0x5EED


class Event:
    """Of a GPU on which 1,500 ms go by between any two events."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.recorded = False

    def record(self) -> None:
        self.recorded = True

    def elapsed_time(self, other: "Event") -> float:
        assert self.recorded
        assert other.recorded
        return 1500.0


class Gpu:
    """Does what is queued when it is waited for, unless a fault comes `first`; then it is broken."""

    def __init__(self) -> None:
        self.fault = ""
        self._queue: list[Callable[[], object]] = []

    def write_value(self, stream: int, address: int, value: int, flags: int) -> None:
        assert (stream, flags) == (QUEUE, 0)
        word = ctypes.c_int32.from_address(address)
        self._queue.append(lambda: setattr(word, "value", value))

    def launch(self) -> None:
        """Queue a kernel, which faults if the fault is the launch's."""
        self._queue.append(self._run)

    def _run(self) -> None:
        if self.fault == "launch":
            self._queue.clear()

    def synchronise(self, before_leaving: Callable[[], None]) -> None:
        if self.fault != "before":
            while self._queue:
                self._queue.pop(0)()
        if self.fault:
            before_leaving()
            raise SystemExit


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    driver = pytest.importorskip("cuda.bindings.driver", reason="replaces a function of cuda-bindings")
    gpu, word = Gpu(), torch.zeros(1, dtype=torch.int32)
    monkeypatch.setattr(driver, "cuStreamWriteValue32", gpu.write_value)
    monkeypatch.setattr(sticky, "synchronise", gpu.synchronise)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(guards, "stream", lambda: QUEUE)
    # There is no page-locked memory without a GPU.
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: word)
    return gpu


def timed(stopwatch: CudaStopwatch, gpu: Gpu) -> float:
    stopwatch.start()
    gpu.launch()
    stopwatch.stop()
    return stopwatch.wait()


def test_a_launch_takes_what_the_gpu_says(gpu: Gpu) -> None:
    stopwatch = CudaStopwatch(disown=lambda: pytest.fail("nothing broke"))
    assert [timed(stopwatch, gpu) for _ in range(2)] == [1.5, 1.5]


@pytest.mark.parametrize(("fault", "disowned"), [("before", 1), ("launch", 0)])
@pytest.mark.parametrize("healthy", [0, 2])
def test_a_launch_that_the_gpu_never_reached_is_not_blamed(gpu: Gpu, fault: str, disowned: int, healthy: int) -> None:
    log: list[str] = []
    stopwatch = CudaStopwatch(disown=lambda: log.append("disowned"))
    for _ in range(healthy):
        timed(stopwatch, gpu)
    gpu.fault = fault
    with pytest.raises(SystemExit):
        timed(stopwatch, gpu)
    assert len(log) == disowned
