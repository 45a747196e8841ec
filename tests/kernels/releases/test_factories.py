"""Tensors that a release makes for itself come from guarded memory, whatever device it asks for."""

from collections.abc import Callable

import pytest
import torch

from attnfuzz.harness.memory import poison
from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases import recording
from attnfuzz.kernels.releases.factories import GuardedFactories
from attnfuzz.kernels.releases.recording import Recording
from attnfuzz.reference.case import Guard, Outputs

SOME = torch.ones(2, 3)


class NoLauncher:
    """Nothing is launched here."""


@pytest.fixture
def memory(arena: Arena) -> GuardedMemory:
    return GuardedMemory(arena, Guard.RIGHT, Outputs.POISONED)


@pytest.fixture
def factories(memory: GuardedMemory) -> GuardedFactories:
    return GuardedFactories(Bench(memory, NoLauncher(), torch.device("cpu")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "content"),
    [
        (lambda: torch.zeros(2, 3, dtype=torch.int32, device="cuda"), [[0, 0, 0], [0, 0, 0]]),
        (lambda: torch.zeros((2,), pin_memory=True), [0, 0]),
        (lambda: torch.zeros_like(SOME), [[0, 0, 0], [0, 0, 0]]),
        (lambda: SOME.new_zeros((2,)), [0, 0]),
        (lambda: torch.ones(2, device="cuda:0"), [1, 1]),
        (lambda: torch.full((2,), -1, dtype=torch.int32, device=torch.device("cuda")), [-1, -1]),
        (lambda: torch.arange(0, 6, 2, device="cuda"), [0, 2, 4]),
    ],
)
def test_a_tensor_lies_in_guarded_memory_with_the_content_that_was_asked_for(
    factories: GuardedFactories, memory: GuardedMemory, make: Callable[[], torch.Tensor], content: list[object]
) -> None:
    with factories:
        made = make()
    assert made.tolist() == content
    assert memory.allocation_of(made).nbytes == made.nbytes
    assert made.device.type == "cpu"


def test_unwritten_tensors_hold_poison(factories: GuardedFactories) -> None:
    with factories:
        table, out = torch.empty(3, dtype=torch.int32, device="cuda"), SOME.new_empty(2)
    assert table.tolist() == [poison.POISON_ID] * 3
    assert poison.unwritten(out).all()


def test_a_tensor_is_named_after_the_line_that_made_it(factories: GuardedFactories, memory: GuardedMemory) -> None:
    with factories:
        made = torch.zeros(2)
        taken = SOME.new_zeros(2)
    names = [memory.allocation_of(each).name for each in (made, taken)]
    assert all(name.startswith("test_factories.py:") for name in names)
    assert len(set(names)) == 2


def test_other_functions_and_tensors_without_poison_are_those_of_torch(
    factories: GuardedFactories, memory: GuardedMemory
) -> None:
    with factories:
        sums, wide, nothing = torch.cumsum(SOME, 0), torch.zeros(2, dtype=torch.float64), torch.zeros(0)
    assert [memory.holds(each) for each in (sums, wide)] == [False, False]
    assert nothing.numel() == 0


def test_our_own_tensors_are_left_alone(factories: GuardedFactories, memory: GuardedMemory) -> None:
    with factories, recording.outside():
        assert not memory.holds(torch.zeros(2))


def test_in_a_capture_a_tensor_is_made_once_and_filled_by_every_replay(
    factories: GuardedFactories, memory: GuardedMemory
) -> None:
    with factories, Recording(torch.device("cpu")) as graph:
        made, counted = torch.zeros(2), torch.arange(3)
        made += 1
    assert memory.holds(made)
    for _ in range(2):
        graph.replay()
        assert (made.tolist(), counted.tolist()) == ([1, 1], [0, 1, 2])
