"""Arguments of a launch in guarded memory: the same values and strides, and what was written goes back."""

import pytest
import torch

from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.harness.memory.poison import poison
from attnfuzz.kernels.releases.placement import WITH_POISON, Placement
from attnfuzz.reference.case import Guard, Outputs

CPU = torch.device("cpu")


@pytest.fixture
def memory(arena: Arena) -> GuardedMemory:
    return GuardedMemory(arena, Guard.RIGHT, Outputs.POISONED)


def test_tensors_in_guarded_memory_are_passed_unchanged(memory: GuardedMemory) -> None:
    table = memory.copy("table", torch.arange(12).view(3, 4))
    part = table[1:, ::2]
    assert Placement(memory, CPU).argument("table", part) is part


def test_a_copy_has_the_values_and_the_strides_and_nothing_behind_its_end(memory: GuardedMemory) -> None:
    wide = torch.arange(24.0).view(4, 6)
    placement = Placement(memory, CPU)
    placed = placement.argument("query", wide[:, 1:3])
    placement.load()
    assert memory.holds(placed)
    assert torch.equal(placed, wide[:, 1:3])
    assert placed.stride() == (6, 1)
    allocation = memory.allocation_of(placed)
    assert (allocation.name, allocation.nbytes) == ("query", (3 * 6 + 2) * 4)


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(3).view(3, 1).expand(3, 4),
        torch.tensor(5),
        torch.tensor([True, False]),
        torch.tensor([1.5], dtype=torch.float64),
        torch.tensor([1, -2], dtype=torch.int8),
        torch.ones(2, 3).to(torch.float8_e5m2),
        torch.ones(3, 1, 2).as_strided((3, 1, 2), (2, 77, 1)),
    ],
)
def test_any_tensor_can_be_placed(memory: GuardedMemory, value: torch.Tensor) -> None:
    placement = Placement(memory, CPU)
    placed = placement.argument("value", value)
    placement.load()
    assert memory.holds(placed)
    assert (placed.shape, placed.stride(), placed.dtype) == (value.shape, value.stride(), value.dtype)
    assert placed.tolist() == value.tolist()


def test_dtypes_listed_with_a_poison_have_one() -> None:
    for dtype in WITH_POISON:
        poison(dtype)


def test_members_of_a_tuple_are_placed_and_other_values_passed_unchanged(memory: GuardedMemory) -> None:
    placement = Placement(memory, CPU)
    pair = placement.argument("kv_cache", (torch.ones(2), torch.zeros(2)))
    placement.load()
    assert [each.tolist() for each in pair] == [[1, 1], [0, 0]]
    assert [placement.argument("x", value) for value in (None, 3, "auto")] == [None, 3, "auto"]
    empty = torch.empty(0)
    assert placement.argument("x", empty) is empty


def test_one_tensor_in_two_arguments_stays_one(memory: GuardedMemory) -> None:
    placement, lengths = Placement(memory, CPU), torch.tensor([0, 3])
    assert placement.argument("cum_q", lengths) is placement.argument("cum_kv", lengths)


def test_written_arguments_are_copied_back(memory: GuardedMemory) -> None:
    out, read = torch.zeros(2, 3), torch.zeros(2)
    placement = Placement(memory, CPU)
    placed, input_ = placement.argument("out", out[:, :2], written=True), placement.argument("read", read)
    placement.load()
    placed.fill_(7)
    input_.fill_(7)
    placement.store()
    assert out.tolist() == [[7, 7, 0], [7, 7, 0]]
    assert read.tolist() == [0, 0]


def test_a_tensor_that_is_read_and_written_as_two_arguments_goes_back_too(memory: GuardedMemory) -> None:
    tensor = torch.zeros(2)
    placement = Placement(memory, CPU)
    placement.argument("a", tensor)
    placed = placement.argument("b", tensor, written=True)
    placement.load()
    placed.fill_(3)
    placement.store()
    assert tensor.tolist() == [3, 3]


def test_values_are_brought_anew_and_results_forgotten_by_each_load(memory: GuardedMemory) -> None:
    source = torch.tensor([1.0, float("nan")])
    placement = Placement(memory, CPU)
    placed, result = placement.argument("x", source), placement.result("out", (2,), torch.float32)
    placement.load()
    untouched = result.view(torch.int32).tolist()
    source[0] = 2
    result.fill_(1)
    placement.load()
    assert result.tolist() == [1, 1]
    placement.renew()
    assert placed[0] == 2
    assert result.view(torch.int32).tolist() == untouched
    assert placed.view(torch.int32)[1] == source.view(torch.int32)[1]


def test_tensors_on_the_host_of_a_gpu_stay_there(memory: GuardedMemory) -> None:
    lengths = torch.tensor([1, 2])
    assert Placement(memory, torch.device("cuda")).argument("q_seq_lens_cpu", lengths) is lengths
