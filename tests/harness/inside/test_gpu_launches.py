"""Launches on a GPU: graphs behind the launcher's interface, and a stopwatch, with stand-ins for torch and a GPU."""

import ctypes
import gc
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnfuzz.harness.inside import gpu_launches
from attnfuzz.harness.inside.gpu_launches import CudaGraph, CudaStopwatch
from attnfuzz.harness.inside.launcher import JournalingLauncher
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.workers import sticky
from attnfuzz.harness.workers.journal import LaunchRecord
from attnfuzz.kernels.cuda import guards
from attnfuzz.kernels.interface.backend import Op


class FakeGraph:
    """torch.cuda.CUDAGraph without a GPU: what `kernel` notes during a capture runs at each replay."""

    capturing: "FakeGraph | None" = None

    def __init__(self) -> None:
        self.kernels: list[Any] = []
        self.modes: list[str] = []

    def capture_begin(self, *, capture_error_mode: str) -> None:
        FakeGraph.capturing = self
        self.modes.append(capture_error_mode)

    def capture_end(self) -> None:
        FakeGraph.capturing = None

    def replay(self) -> None:
        for kernel in self.kernels:
            kernel()


def add_into(*, out: torch.Tensor, x: torch.Tensor, amount: int) -> None:
    """A kernel: runs now, or at each replay if a capture is under way."""
    if FakeGraph.capturing is None:
        out.copy_(x + amount)
    else:
        FakeGraph.capturing.kernels.append(lambda: out.copy_(x + amount))


ADD = Op("add", add_into, frozenset({"out"}))
AGAIN = Op("again", add_into, frozenset({"out"}))


class Allocator:
    """Torch's, with so many bytes `reserved`."""

    reserved = 0

    def give_back(self) -> None:
        self.reserved = 0


@pytest.fixture(autouse=True)
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    allocator = Allocator()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: allocator.reserved)
    monkeypatch.setattr(torch.cuda, "empty_cache", allocator.give_back)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(gpu_launches, "_stream", lambda: None)
    return allocator


@pytest.fixture
def entries() -> list[bytes]:
    return []


@pytest.fixture
def launcher(memory: GuardedMemory, entries: list[bytes]) -> JournalingLauncher:
    launcher = JournalingLauncher(memory, entries.append, new_graph=CudaGraph)
    launcher.begin_step(0, "decode")
    return launcher


def test_launches_are_captured_at_the_end_of_the_block(
    launcher: JournalingLauncher, tensors: dict[str, Any], entries: list[bytes]
) -> None:
    with launcher.capture() as graph:
        assert launcher.launch(ADD, amount=1, **tensors) is None
        # What a session does in between is no part of the graph.
        tensors["x"].copy_(torch.tensor([10, 20]))
        assert entries == []
    assert LaunchRecord.decode(entries[-1]).kernel == "add"
    assert tensors["out"].tolist() == [0, 0]
    graph.replay()
    assert tensors["out"].tolist() == [11, 21]


def test_a_replay_reads_current_contents(launcher: JournalingLauncher, tensors: dict[str, Any]) -> None:
    with launcher.capture() as graph:
        launcher.launch(ADD, amount=1, **tensors)
    for x in ([3, 4], [5, 6]):
        tensors["x"].copy_(torch.tensor(x))
        graph.replay()
        assert tensors["out"].tolist() == [x[0] + 1, x[1] + 1]
    assert launcher.kernel_seconds > 0


def test_other_threads_may_use_the_device_during_a_capture(
    launcher: JournalingLauncher, tensors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = FakeGraph()
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: made)
    with launcher.capture():
        launcher.launch(ADD, amount=1, **tensors)
    assert made.modes == ["thread_local"]


@pytest.mark.parametrize("reserved", [1 << 20, 8 << 30])
def test_memory_of_dead_graphs_is_given_back_only_when_it_is_much(
    launcher: JournalingLauncher, tensors: dict[str, Any], allocator: Allocator, reserved: int
) -> None:
    allocator.reserved = reserved
    with launcher.capture():
        launcher.launch(ADD, amount=1, **tensors)
    assert allocator.reserved == (reserved if reserved < 1 << 30 else 0)


def test_the_record_of_a_replay_names_all_of_its_launches(
    launcher: JournalingLauncher, memory: GuardedMemory, tensors: dict[str, Any], entries: list[bytes]
) -> None:
    end = memory.copy("end", torch.tensor([0, 0]))
    with launcher.capture() as graph:
        launcher.launch(ADD, amount=1, **tensors)
        launcher.launch(AGAIN, amount=1, out=end, x=tensors["out"])
    launcher.begin_step(1, "decode")
    graph.replay()
    record = LaunchRecord.decode(entries[-1])
    assert (record.kernel, record.call, record.step) == ("add + again", -1, 1)
    assert [tensor.name for tensor in record.tensors] == ["x", "out", "end"]
    assert end.tolist() == [3, 4]


def test_a_graph_of_one_launch_is_recorded_like_the_launch(
    launcher: JournalingLauncher, tensors: dict[str, Any], entries: list[bytes]
) -> None:
    with launcher.capture() as graph:
        launcher.launch(ADD, amount=1, **tensors)
    launcher.begin_step(1, "decode")
    graph.replay()
    record = LaunchRecord.decode(entries[-1])
    assert (record.kernel, record.call) == ("add", 0)


def test_an_input_that_a_replay_changes_is_observed(launcher: JournalingLauncher, tensors: dict[str, Any]) -> None:
    def spoil(*, out: torch.Tensor, x: torch.Tensor) -> None:
        assert FakeGraph.capturing is not None
        FakeGraph.capturing.kernels.append(lambda: (out.fill_(1), x.fill_(7)))

    with launcher.capture() as graph:
        launcher.launch(Op("spoil", spoil, frozenset({"out"})), **tensors)
    assert launcher.observations == []
    graph.replay()
    assert [(seen.kind, seen.place) for seen in launcher.observations] == [(Kind.INPUT_MUTATED, "x")]


def ends_with(message: str) -> Callable[[FakeGraph], None]:
    """The end of a capture that CUDA refuses."""

    def capture_end(graph: FakeGraph) -> None:
        del graph
        FakeGraph.capturing = None
        raise RuntimeError(message)

    return capture_end


def test_a_rejection_by_a_kernel_during_a_capture_is_reported_as_such(
    launcher: JournalingLauncher, tensors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(**_: object) -> None:
        raise ValueError("no such head dim")

    monkeypatch.setattr(FakeGraph, "capture_end", ends_with("the capture was invalidated"))
    with pytest.raises(ValueError, match="no such head dim") as caught, launcher.capture():
        launcher.launch(Op("reject", reject, frozenset({"out"})), **tensors)
    assert launcher.raised is caught.value
    assert launcher.kernel == "reject"


def test_a_kernel_that_can_not_be_captured_is_reported(
    launcher: JournalingLauncher, tensors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    invalidated = ends_with("operation not permitted when stream is capturing")
    monkeypatch.setattr(FakeGraph, "capture_end", invalidated)
    with pytest.raises(RuntimeError, match="not permitted"), launcher.capture():
        launcher.launch(ADD, amount=1, **tensors)
    launcher.launch(ADD, amount=1, **tensors)
    assert tensors["out"].tolist() == [2, 3]


@pytest.mark.parametrize("raises", [False, True])
def test_no_garbage_is_collected_during_a_capture(
    launcher: JournalingLauncher, tensors: dict[str, Any], *, raises: bool
) -> None:
    collecting = []

    def look(**_: object) -> None:
        collecting.append(gc.isenabled())
        if raises:
            raise ValueError("no such head dim")

    with pytest.raises(ValueError, match="no such") if raises else nullcontext(), launcher.capture():
        launcher.launch(Op("look", look, frozenset({"out"})), **tensors)
    assert collecting == [False]
    assert gc.isenabled()


def test_a_launch_that_fails_unnoticed_is_observed_of_a_capture_too(
    memory: GuardedMemory, tensors: dict[str, Any]
) -> None:
    errors = ["cudaErrorInvalidConfiguration: invalid configuration argument", ""]
    launcher = JournalingLauncher(memory, lambda _: None, new_graph=CudaGraph, failed_launch=lambda: errors.pop(0))
    launcher.begin_step(0, "decode")
    with launcher.capture():
        for op in (ADD, AGAIN):
            launcher.launch(op, amount=1, **tensors)
    assert [(found.kind, found.kernel, found.call) for found in launcher.observations] == [(Kind.RAISED, "add", 0)]


def test_a_block_that_raises_captures_nothing(
    launcher: JournalingLauncher, tensors: dict[str, Any], entries: list[bytes]
) -> None:
    def stop(**_: object) -> None:
        raise KeyError

    with pytest.raises(KeyError), launcher.capture():
        stop(result=launcher.launch(ADD, amount=1, **tensors))
    assert entries == []


QUEUE = 0x5EED
DONE, NOT_READY = 0, 600


class Event:
    """Of a GPU on which 1,500 ms go by between any two events."""

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.recorded = False

    def record(self, stream: Any) -> None:
        assert stream.cuda_stream == QUEUE
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
    monkeypatch.setattr(guards, "current_stream", lambda: SimpleNamespace(cuda_stream=QUEUE))
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


def test_the_time_of_launches_is_measured_on_the_gpu(gpu: Gpu) -> None:
    stopwatch = CudaStopwatch([])
    for count in (1, 3, 2, 0):
        queue(stopwatch, gpu, [""] * count)
        assert stopwatch.wait(never) == 1.5 * count


def test_stopwatches_use_the_same_events_in_turn(gpu: Gpu) -> None:
    events: list[Any] = []
    for count in (2, 3, 1):
        stopwatch = CudaStopwatch(events)
        queue(stopwatch, gpu, [""] * count)
        assert stopwatch.wait(never) == 1.5 * count
    assert len(events) == 3


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
    stopwatch, sent = CudaStopwatch([]), list[int | None]()
    queue(stopwatch, gpu, [""] * healthy)
    stopwatch.wait(never)
    queue(stopwatch, gpu, kernels)
    with pytest.raises(SystemExit):
        stopwatch.wait(sent.append)
    assert sent == [blamed]


def test_the_launch_is_blamed_also_after_an_error_that_breaks_nothing(gpu: Gpu) -> None:
    stopwatch, sent = CudaStopwatch([]), list[int | None]()
    queue(stopwatch, gpu, ["", ""])
    gpu.error = RuntimeError("CUDA error: invalid argument")
    with pytest.raises(RuntimeError, match="invalid argument"):
        stopwatch.wait(never)
    queue(stopwatch, gpu, ["", "faults"])
    with pytest.raises(SystemExit):
        stopwatch.wait(sent.append)
    assert sent == [1]


def test_a_hang_is_reported_once(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    stopwatch, sent = CudaStopwatch([]), list[int | None]()
    clock = iter(range(0, 200, 2))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    queue(stopwatch, gpu, ["", "hangs", ""])
    # As long as the clock goes.
    with pytest.raises(StopIteration):
        stopwatch.wait(sent.append)
    assert sent[-1] == 1
    assert sent.count(1) == 1
