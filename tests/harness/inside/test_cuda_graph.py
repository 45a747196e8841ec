"""Graphs of CUDA behind the launcher's interface, with a stand-in for torch's."""

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from attnfuzz.harness.inside import gpu_launches
from attnfuzz.harness.inside.gpu_launches import CudaGraph
from attnfuzz.harness.inside.launcher import JournalingLauncher
from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.workers.journal import LaunchRecord
from attnfuzz.kernels.backend import Op
from attnfuzz.reference.case import Guard, Outputs


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
def memory() -> Iterator[GuardedMemory]:
    with Arena() as arena, GuardedMemory(arena, Guard.RIGHT, Outputs.POISONED) as memory:
        yield memory


@pytest.fixture
def entries() -> list[bytes]:
    return []


@pytest.fixture
def launcher(memory: GuardedMemory, entries: list[bytes]) -> JournalingLauncher:
    launcher = JournalingLauncher(memory, entries.append, new_graph=CudaGraph)
    launcher.begin_step(0, "decode")
    return launcher


@pytest.fixture
def tensors(memory: GuardedMemory) -> dict[str, Any]:
    return {"x": memory.copy("x", torch.tensor([1, 2])), "out": memory.copy("out", torch.tensor([0, 0]))}


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


def test_a_replay_sees_what_tensors_hold_then(launcher: JournalingLauncher, tensors: dict[str, Any]) -> None:
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


def test_what_a_kernel_rejects_during_a_capture_is_its_rejection(
    launcher: JournalingLauncher, tensors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(**_: object) -> None:
        raise ValueError("no such head dim")

    monkeypatch.setattr(FakeGraph, "capture_end", ends_with("the capture was invalidated"))
    with pytest.raises(ValueError, match="no such head dim") as caught, launcher.capture():
        launcher.launch(Op("reject", reject, frozenset({"out"})), **tensors)
    assert launcher.raised is caught.value
    assert launcher.kernel == "reject"


def test_a_kernel_that_can_not_be_captured_is_told(
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
