"""How a launch on a GPU is timed and waited for, with a GPU that does nothing by itself."""

import ctypes
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch

from attnfuzz.harness.inside.gpu_launches import CudaStopwatch
from attnfuzz.harness.workers import sticky
from attnfuzz.kernels.gpu import guards

QUEUE = 0x5EED
DONE, NOT_READY = 0, 600


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
    """Does one thing of what is queued whenever it is asked whether it is done.

    A kernel that "faults" breaks it for good, and one that "hangs" is never over.
    """

    def __init__(self) -> None:
        self.broken = False
        self.error: Exception | None = None
        self._queue: list[Callable[[], object]] = []

    def write_value(self, stream: int, address: int, value: int, flags: int) -> None:
        assert (stream, flags) == (QUEUE, 0)
        word = ctypes.c_int32.from_address(address)
        self._queue.append(lambda: setattr(word, "value", value))

    def launch(self, kernel: str = "") -> None:
        """Queue a kernel."""
        self._queue.append(lambda: self._run(kernel))

    def _run(self, kernel: str) -> None:
        if kernel == "faults":
            self.broken = True
            self._queue.clear()
        if kernel == "hangs":
            self._queue.insert(0, lambda: self._run("hangs"))

    def query(self, stream: int) -> tuple[object]:
        assert stream == QUEUE
        if self._queue:
            self._queue.pop(0)()
        return (NOT_READY if self._queue else DONE,)

    def synchronise(self, before_leaving: Callable[[], None]) -> None:
        if self.broken:
            before_leaving()
            raise SystemExit
        if self.error is not None:
            raise self.error


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    driver = pytest.importorskip("cuda.bindings.driver", reason="replaces a function of cuda-bindings")
    gpu = Gpu()
    monkeypatch.setattr(driver, "cuStreamWriteValue32", gpu.write_value)
    monkeypatch.setattr(driver, "cuStreamQuery", gpu.query)
    monkeypatch.setattr(driver, "CUresult", SimpleNamespace(CUDA_ERROR_NOT_READY=NOT_READY))
    monkeypatch.setattr(sticky, "synchronise", gpu.synchronise)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(guards, "stream", lambda: QUEUE)
    # There is no page-locked memory without a GPU.
    word = torch.zeros(1, dtype=torch.int32)
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: word)
    return gpu


def queue(stopwatch: CudaStopwatch, gpu: Gpu, kernels: Sequence[str]) -> None:
    """Queue launches of kernels; one of "between faults" is no launch."""
    for kernel in kernels:
        if kernel == "between faults":
            gpu.launch("faults")
            continue
        stopwatch.start()
        gpu.launch(kernel)
        stopwatch.stop()


def never(at: int | None) -> None:
    pytest.fail(f"nothing broke at {at}")


def test_launches_take_what_the_gpu_says(gpu: Gpu) -> None:
    stopwatch = CudaStopwatch()
    for count in (1, 3, 2, 0):
        queue(stopwatch, gpu, [""] * count)
        assert stopwatch.wait(never) == 1.5 * count


@pytest.mark.parametrize(
    ("kernels", "blamed"),
    [
        (["faults"], 0),
        (["", "faults", ""], 1),
        (["", "", "faults"], 2),
        (["between faults", ""], None),
        (["", "between faults", ""], None),
        (["", "between faults"], None),
    ],
)
@pytest.mark.parametrize("healthy", [0, 2])
def test_the_launch_that_the_gpu_was_at_is_blamed(
    gpu: Gpu, kernels: list[str], blamed: int | None, healthy: int
) -> None:
    stopwatch, told = CudaStopwatch(), list[int | None]()
    queue(stopwatch, gpu, [""] * healthy)
    stopwatch.wait(never)
    queue(stopwatch, gpu, kernels)
    with pytest.raises(SystemExit):
        stopwatch.wait(told.append)
    assert told == [blamed]


def test_the_launch_is_blamed_also_after_an_error_that_breaks_nothing(gpu: Gpu) -> None:
    stopwatch, told = CudaStopwatch(), list[int | None]()
    queue(stopwatch, gpu, ["", ""])
    gpu.error = RuntimeError("CUDA error: invalid argument")
    with pytest.raises(RuntimeError, match="invalid argument"):
        stopwatch.wait(never)
    queue(stopwatch, gpu, ["", "faults"])
    with pytest.raises(SystemExit):
        stopwatch.wait(told.append)
    assert told == [1]


def test_what_never_ends_is_told_once(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    stopwatch, told = CudaStopwatch(), list[int | None]()
    clock = iter(range(0, 200, 2))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    queue(stopwatch, gpu, ["", "hangs", ""])
    # As long as the clock goes.
    with pytest.raises(StopIteration):
        stopwatch.wait(told.append)
    assert told[-1] == 1
    assert told.count(1) == 1
