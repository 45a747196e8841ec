"""Guarded memory, as far as it shows without a fault; the workers' tests show the faults."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from repetition import examples

from attnfuzz.harness.memory.arena import PAGE, Arena
from attnfuzz.harness.memory.guarded import GuardedMemory, PlainMemory
from attnfuzz.harness.memory.poison import poison, unwritten
from attnfuzz.kernels.interface.backend import Fill
from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.dtypes import DType

DTYPES = list(dict.fromkeys(dtype.memory for dtype in DType))


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with Arena(reserve=1 << 38) as arena:
        yield arena


@pytest.fixture(params=list(Guard))
def memory(arena: Arena, request: pytest.FixtureRequest) -> Iterator[GuardedMemory]:
    with GuardedMemory(arena, request.param, Outputs.POISONED) as memory:
        yield memory


def content(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_is_flush_with_its_guard(arena: Arena, dtype: torch.dtype) -> None:
    with GuardedMemory(arena, Guard.RIGHT, Outputs.POISONED) as right:
        assert (right.tensor("q", (3, 5), dtype).data_ptr() + 15 * dtype.itemsize) % PAGE == 0
    with GuardedMemory(arena, Guard.LEFT, Outputs.POISONED) as left:
        assert left.tensor("q", (3, 5), dtype).data_ptr() % PAGE == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_fills(memory: GuardedMemory, dtype: torch.dtype) -> None:
    nbytes = 6 * dtype.itemsize
    assert content(memory.tensor("a", (2, 3), dtype)) == poison(dtype).content(nbytes)
    assert content(memory.tensor("b", (2, 3), dtype, fill=Fill.ZEROS)) == bytes(nbytes)
    assert unwritten(memory.tensor("c", (2, 3), dtype, fill=Fill.OUTPUT)).all()
    value = torch.arange(6).view(2, 3).to(dtype)
    assert content(memory.copy("d", value)) == content(value)
    assert memory.damage().result() == []


@pytest.mark.parametrize("fill", list(Fill))
def test_gaps_hold_poison_whatever_the_tensor_holds(memory: GuardedMemory, fill: Fill) -> None:
    tensor = memory.tensor("q", (3, 2), torch.float32, stride=(5, 1), fill=fill)
    tensor.copy_(torch.ones(3, 2))
    gap = ctypes.string_at(tensor.data_ptr() + 8, 12)
    assert gap == poison(torch.float32).content(12)
    assert memory.damage().result() == []
    assert memory.allocations()[0].nbytes == 12 * 4


def test_a_permuted_copy_keeps_its_values(memory: GuardedMemory) -> None:
    value = torch.randn(2, 3, 4)
    tensor = memory.copy("kv", value, stride=(4, 8, 1))
    assert torch.equal(tensor, value)
    assert tensor.stride() == (4, 8, 1)


def test_a_write_beside_a_tensor_is_damage_with_its_place(arena: Arena) -> None:
    with GuardedMemory(arena, Guard.RIGHT, Outputs.POISONED) as memory:
        tensor = memory.tensor("out", (10,), torch.float32)
        memory.tensor("intact", (10,), torch.float32)
        ctypes.memset(tensor.data_ptr() - 12, 0, 8)
        (damage,) = memory.damage().result()
        assert (damage.name, damage.offset, damage.count) == ("out", -12, 8)
        assert str(damage) == "8 bytes overwritten before out, from 12 bytes before its start"
    with GuardedMemory(arena, Guard.LEFT, Outputs.POISONED) as memory:
        tensor = memory.tensor("out", (10,), torch.float32)
        ctypes.memset(tensor.data_ptr() + 44, 0, 4)
        assert str(memory.damage().result()[0]) == "4 bytes overwritten after out, from 4 bytes past its end"


@pytest.mark.parametrize("element", [0x7FC0, 0xFFC0, 0, 0x7FDB])
def test_damage_by_a_computed_nan_or_the_sentinel_is_seen(memory: GuardedMemory, element: int) -> None:
    tensor = memory.tensor("out", (10,), torch.bfloat16)
    slack = tensor.data_ptr() - 2 if memory.allocations()[0].guard is Guard.RIGHT else tensor.data_ptr() + 20
    ctypes.c_uint16.from_address(slack).value = element
    assert len(memory.damage().result()) == 1


def test_a_write_into_a_gap_is_damage(memory: GuardedMemory) -> None:
    tensor = memory.tensor("q", (3, 2), torch.float32, stride=(5, 1), fill=Fill.ZEROS)
    ctypes.memset(tensor.data_ptr() + 28, 0, 12)
    (damage,) = memory.damage().result()
    assert str(damage) == "12 bytes overwritten in the gaps of q, from 28 bytes after its start"


def test_memory_in_use_is_never_handed_out_again(memory: GuardedMemory) -> None:
    tensors = [memory.copy("t", torch.full((100,), index, dtype=torch.int32)) for index in range(50)]
    assert [set(tensor.tolist()) for tensor in tensors] == [{index} for index in range(50)]


@pytest.mark.slow
@examples(100, 500)
def test_cases_of_all_sizes_leave_no_more_memory_behind_than_the_budget(count: int) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE

    budget = 4 << 20
    with Arena(budget=budget, reserve=1 << 40) as arena:
        before = resident()
        for index in range(count):
            with GuardedMemory(arena, Guard.RIGHT, Outputs.POISONED) as memory:
                for part in range(8):
                    memory.tensor("kv", (1 + (index * 7919 + part * 104729) % 500_000,), torch.float32)
            assert resident() - before < 3 * budget


def test_a_seal_names_the_tensor_and_element_that_changed(memory: GuardedMemory) -> None:
    q = memory.copy("q", torch.zeros(4, 8))
    lens = memory.copy("lens", torch.zeros(7, dtype=torch.int32))
    seal = memory.seal(memory.allocations())
    assert seal.broken().result() == []
    lens[5] = 3
    assert seal.broken().result() == [("lens", 5)]
    q[2, 1] = -0.0
    lens[2:4] = 1
    assert seal.broken().result() == [("q", 17), ("lens", 2)]


def test_a_changed_input_is_restored_for_later_readers(memory: GuardedMemory) -> None:
    q = memory.copy("q", torch.arange(32.0).view(4, 8))
    seal = memory.seal(memory.allocations())
    q *= 2
    assert seal.broken().result() == [("q", 1)]
    assert torch.equal(q, torch.arange(32.0).view(4, 8))
    assert seal.broken().result() == []


def test_a_seal_on_a_view_covers_the_whole_allocation(memory: GuardedMemory) -> None:
    pool = memory.copy("kv", torch.zeros(4, 2, 8))
    seal = memory.seal([memory.allocation_of(pool[:, 1])])
    pool[3, 0, 0] = 1
    assert seal.broken().result() == [("kv", 48)]


def test_a_seal_sees_poison_replaced_by_another_nan(memory: GuardedMemory) -> None:
    tensor = memory.tensor("q", (8,), torch.float32)
    seal = memory.seal(memory.allocations())
    tensor[3] = float("nan")
    assert seal.broken().result() == [("q", 3)]


def test_a_tensor_outside_of_guarded_memory_is_not_on_record(memory: GuardedMemory) -> None:
    with pytest.raises(ValueError, match="outside of guarded memory"):
        memory.on_record([("q", torch.zeros(4))])


def test_a_scalar_tensor_is_an_allocation(memory: GuardedMemory) -> None:
    assert memory.copy("scale", torch.tensor(2.5)).item() == 2.5


def test_overlapping_strides_are_refused(memory: GuardedMemory) -> None:
    with pytest.raises(ValueError, match="overlap"):
        memory.tensor("q", (4, 3), torch.float32, stride=(2, 1))


@pytest.mark.parametrize("outputs", list(Outputs))
@pytest.mark.parametrize("fill", list(Fill))
def test_plain_memory_holds_the_same_values(arena: Arena, fill: Fill, outputs: Outputs) -> None:
    plain = PlainMemory(outputs).tensor("q", (4, 6), torch.float16, stride=(8, 1), fill=fill)
    with GuardedMemory(arena, Guard.RIGHT, outputs) as memory:
        guarded = memory.tensor("q", (4, 6), torch.float16, stride=(8, 1), fill=fill)
        assert plain.stride() == guarded.stride()
        if fill is not Fill.OUTPUT or outputs is Outputs.POISONED:
            assert content(plain) == content(guarded)
        else:
            assert plain.isfinite().all()
            assert guarded.isfinite().all()
