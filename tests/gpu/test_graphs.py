"""CUDA graphs behind the launcher's interface: what is captured, what a replay sees, and captures that fail."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attnfuzz.harness.inside.launcher import JournalingLauncher
from attnfuzz.harness.inside.places import Place, place_of
from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.workers.journal import LaunchRecord
from attnfuzz.kernels.interface.backend import Fill, Op
from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.device import Device

pytestmark = pytest.mark.gpu

ADD = Op("add", lambda *, out, x, amount: torch.add(x, amount, out=out), frozenset({"out"}))
DOUBLE = Op("double", lambda *, out, x: out.copy_(x * 2), frozenset({"out"}))
"""It allocates: its product lies in the graph's own pool."""

COUNT = torch.arange(64, dtype=torch.float32)


@pytest.fixture(scope="module")
def place() -> Place:
    return place_of(Device.CUDA)


@pytest.fixture(params=list(Guard))
def memory(place: Place, request: pytest.FixtureRequest) -> Iterator[PlacedMemory]:
    memory = place.memory(request.param, Outputs.POISONED)
    yield memory
    memory.release()


@pytest.fixture
def entries() -> list[bytes]:
    return []


@pytest.fixture
def launcher(place: Place, memory: PlacedMemory, entries: list[bytes]) -> JournalingLauncher:
    launcher = place.launcher(memory, entries.append, None)
    launcher.begin_step(0, "decode")
    return launcher


@pytest.fixture
def tensors(memory: PlacedMemory) -> dict[str, Any]:
    return {"x": memory.copy("x", COUNT), "out": memory.tensor("out", (64,), torch.float32, fill=Fill.OUTPUT)}


def test_a_capture_computes_nothing_and_a_replay_reads_current_contents(
    launcher: JournalingLauncher, memory: PlacedMemory, tensors: dict[str, Any], entries: list[bytes]
) -> None:
    end = memory.tensor("end", (64,), torch.float32, fill=Fill.OUTPUT)
    amount = 3
    with launcher.capture() as graph:
        assert launcher.launch(ADD, amount=amount, **tensors) is None
        launcher.launch(DOUBLE, out=end, x=tensors["out"])
    amount = 100
    assert tensors["out"].isnan().all()
    for shift in (0.0, 50.0):
        tensors["x"].copy_(COUNT + shift)
        graph.replay()
        assert torch.equal(end.cpu(), (COUNT + shift + 3) * 2)
    launcher.see_through()
    assert launcher.observations == []
    assert LaunchRecord.decode(entries[-1]).kernel == "add + double"
    assert memory.damage().result() == []


def test_an_input_that_a_replay_changes_is_observed(launcher: JournalingLauncher, tensors: dict[str, Any]) -> None:
    def spoil(*, out: torch.Tensor, x: torch.Tensor) -> None:
        out.fill_(1)
        x[5:6].fill_(7)

    tensors["x"].zero_()
    with launcher.capture() as graph:
        launcher.launch(Op("spoil", spoil, frozenset({"out"})), **tensors)
    assert launcher.observations == []
    graph.replay()
    launcher.see_through()
    (found,) = launcher.observations
    assert (found.kind, found.message) == (Kind.INPUT_MUTATED, "spoil changed its input x, first at element 5")


def test_a_kernel_that_waits_for_the_device_can_not_be_captured(
    launcher: JournalingLauncher, tensors: dict[str, Any]
) -> None:
    waits = Op("waits", lambda *, out, x: out.fill_(x.sum().item()), frozenset({"out"}))
    with pytest.raises(RuntimeError), launcher.capture():
        launcher.launch(waits, **tensors)
    assert launcher.kernel == "waits"
    launcher.launch(ADD, amount=1, **tensors)
    assert torch.equal(tensors["out"].cpu(), COUNT + 1)


def test_a_kernel_that_rejects_its_arguments_during_a_capture_is_reported(
    launcher: JournalingLauncher, tensors: dict[str, Any]
) -> None:
    def reject(**_: object) -> None:
        raise ValueError("no such head dim")

    with pytest.raises(ValueError, match="no such head dim") as caught, launcher.capture():
        launcher.launch(Op("reject", reject, frozenset({"out"})), **tensors)
    assert launcher.raised is caught.value
    launcher.launch(ADD, amount=1, **tensors)
    assert torch.equal(tensors["out"].cpu(), COUNT + 1)


def test_memory_of_a_graph_serves_no_other_case_while_the_graph_lives(
    place: Place, launcher: JournalingLauncher, memory: PlacedMemory, tensors: dict[str, Any]
) -> None:
    with launcher.capture() as graph:
        launcher.launch(ADD, amount=1, **tensors)
    held = {tensor.data_ptr() for tensor in tensors.values()}
    memory.release()
    tensors.clear()
    other = place.memory(Guard.RIGHT, Outputs.POISONED)
    assert held.isdisjoint({other.copy("y", COUNT).data_ptr() for _ in range(4)})
    del graph
    other.release()
