"""Tensors of gigabytes of addresses, most of them without memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from attnfuzz.harness.memory.allocation import locate
from attnfuzz.harness.memory.arena import PAGE, Arena
from attnfuzz.harness.memory.guarded import GuardedMemory, PlainMemory
from attnfuzz.harness.memory.slabs import NoAddresses, OutOfMemory
from attnfuzz.kernels.interface.backend import Fill
from attnfuzz.reference.case import Guard, Outputs

ROWS, WIDTH = (1 << 31) // 24 + 10, 24
HOLE = range(1, ROWS - 5)


@pytest.fixture(params=list(Guard))
def memory(request: pytest.FixtureRequest) -> Iterator[GuardedMemory]:
    with Arena() as arena, GuardedMemory(arena, request.param, Outputs.POISONED) as memory:
        yield memory


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_offsets_pass_2_to_the_31_and_little_memory_is_used(memory: GuardedMemory) -> None:
    before = resident()
    pool = memory.tensor("pool", (ROWS, WIDTH), torch.float32, hole=HOLE)
    assert pool[-1].storage_offset() > 1 << 31
    assert resident() - before < 64 << 20


def test_rows_beside_the_hole_are_poisoned_and_writable(memory: GuardedMemory) -> None:
    pool = memory.tensor("pool", (ROWS, WIDTH), torch.float32, hole=HOLE)
    assert pool[0].isnan().all()
    assert pool[HOLE.stop :].isnan().all()
    pool[-1] = 1
    assert pool[-1].sum() == WIDTH
    assert memory.damage().read() == []


def test_a_changed_row_breaks_the_seal_and_is_put_back(memory: GuardedMemory) -> None:
    pool = memory.tensor("pool", (ROWS, WIDTH), torch.float32, hole=HOLE)
    pool[[0, -1]] = 1.0
    seal = memory.seal(memory.allocations())
    pool[-1, 2] = 5.0
    assert seal.broken().read() == [("pool", (ROWS - 1) * WIDTH + 2)]
    assert pool[-1, 2] == 1


def test_an_address_in_the_hole_is_named(memory: GuardedMemory) -> None:
    pool = memory.tensor("pool", (ROWS, WIDTH), torch.float32, hole=HOLE)
    (allocation,) = memory.allocations()
    first, end = allocation.hole
    assert (allocation.address + first) % PAGE == (allocation.address + end) % PAGE == 0
    assert "in pages that no request owns" in str(locate([allocation], allocation.address + first))
    assert pool[1].storage_offset() * 4 <= first < end <= pool[HOLE.stop].storage_offset() * 4


def test_small_slabs_stay_warm_when_a_hollow_one_is_given_back() -> None:
    with Arena(budget=1 << 20) as arena:
        small = arena.take(PAGE, Guard.LEFT)
        arena.give(small)
        arena.give(arena.take(1 << 33, Guard.LEFT, (PAGE, (1 << 33) - PAGE)))
        assert arena.take(PAGE, Guard.LEFT) is small
        assert small.opened == PAGE


def test_a_small_address_space_has_no_room_for_a_hole() -> None:
    with Arena(reserve=1 << 33) as arena, GuardedMemory(arena, Guard.LEFT, Outputs.POISONED) as memory:
        with pytest.raises(NoAddresses, match="ulimit -v"):
            memory.tensor("pool", (ROWS, WIDTH), torch.float32, hole=HOLE)
        with pytest.raises(OutOfMemory) as without_hole:
            memory.tensor("pool", (1 << 32,), torch.float32)
        assert not isinstance(without_hole.value, NoAddresses)


def test_only_dense_tensors_of_poison_have_holes(memory: GuardedMemory) -> None:
    with pytest.raises(ValueError, match="hole"):
        memory.tensor("pool", (ROWS, WIDTH), torch.float32, hole=HOLE, fill=Fill.ZEROS)


def test_plain_memory_has_holes_too() -> None:
    before = resident()
    pool = PlainMemory(Outputs.POISONED).tensor("pool", (ROWS, WIDTH), torch.float32, hole=HOLE)
    assert pool[-1].isnan().all()
    assert resident() - before < 64 << 20
