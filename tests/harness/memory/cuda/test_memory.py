"""Guarded memory of a GPU, on the host, and what it has in common with the host's."""

import ctypes
import gc
import mmap
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from memory_scripts import Made, play, scripts
from repetition import examples

from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.cuda.arena import CudaArena
from attnfuzz.harness.memory.cuda.memory import CudaMemory, PlainCudaMemory
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.kernels.interface.backend import Fill
from attnfuzz.reference.case import Guard, Outputs

if TYPE_CHECKING:
    from fake_driver import FakeDriver

GRANULARITY = 16 * mmap.PAGESIZE
"""That of the driver's double."""


@pytest.fixture(scope="module")
def host_arena() -> Iterator[Arena]:
    with Arena(reserve=1 << 38) as arena:
        yield arena


Build = Callable[[Guard, Outputs], GuardedMemory | CudaMemory]


@pytest.fixture(params=["host", "gpu"])
def build(host_arena: Arena, request: pytest.FixtureRequest) -> Build:
    """Makes the memory of one of the devices."""
    if request.param == "host":
        return partial(GuardedMemory, host_arena)
    return partial(CudaMemory, request.getfixturevalue("arena"))


@pytest.fixture(params=list(Guard))
def memory(arena: CudaArena, request: pytest.FixtureRequest) -> Iterator[CudaMemory]:
    with CudaMemory(arena, request.param, Outputs.POISONED) as memory:
        yield memory


@pytest.mark.parametrize("rows", [(1 << 31) // 24 + 10, 100])
def test_only_the_parts_around_a_hole_are_mapped(memory: CudaMemory, driver: "FakeDriver", rows: int) -> None:
    hole = range(1, rows - 5)
    pool = memory.tensor("pool", (rows, 24), torch.float32, hole=hole)
    assert sum(driver.mapped.values()) <= 2 * GRANULARITY
    assert pool[[0, -1]].isnan().all()
    pool[[0, -1]] = 1.0
    seal = memory.seal(memory.allocations())
    assert seal.broken().read() == []
    pool[-1, 2] = 5.0
    pool[-1, 3] = 5.0
    assert seal.broken().read() == [("pool", (rows - 1) * 24 + 2)]
    assert pool[-1, 2] == 1
    assert memory.damage().read() == []


def test_a_hollow_slab_frees_its_memory_when_it_is_returned(memory: CudaMemory, driver: "FakeDriver") -> None:
    for rows in (1 << 27, (1 << 27) - 3):
        pool = memory.tensor("pool", (rows, 24), torch.float32, hole=range(1, rows - 5))
        pool[-1] = 1.0
        del pool
        memory.release()
        gc.collect()
        memory.release()
        assert not driver.mapped


def poke(address: int, content: bytes) -> None:
    ctypes.memmove(address, content, len(content))


@pytest.mark.slow
@examples(20, 500)
def test_its_seals_report_the_same_as_those_of_the_host(arena: CudaArena, host_arena: Arena, count: int) -> None:
    @settings(max_examples=count, deadline=None, database=None, derandomize=True)
    @given(scripts())
    def example(script: tuple[Guard, list[Made]]) -> None:
        guard, made = script
        with GuardedMemory(host_arena, guard, Outputs.POISONED) as host:
            expected: list[Any] = play(host, made, poke)
        with CudaMemory(arena, guard, Outputs.POISONED) as memory:
            assert play(memory, made, poke) == expected

    example()


def test_outputs_can_hold_stale_numbers(build: Build) -> None:
    with build(Guard.RIGHT, Outputs.STALE) as memory:
        for stride in (None, (35, 1)):
            out = memory.tensor("out", (7, 33), torch.bfloat16, stride=stride, fill=Fill.OUTPUT)
            assert out.isfinite().all()
            assert out.float().std() > 0.5
        assert memory.damage().result() == []


def test_damage_of_one_case_is_not_seen_in_the_next_and_its_values_are_gone(build: Build) -> None:
    seen = set()
    for _ in range(3):
        with build(Guard.RIGHT, Outputs.POISONED) as memory:
            tensor = memory.tensor("q", (10,), torch.int32)
            seen.add(tensor.data_ptr())
            assert set(tensor.tolist()) == {0x00BADBAD}
            assert memory.damage().result() == []
            poke(tensor.data_ptr() - 100, bytes(140))
            assert len(memory.damage().result()) == 1
        del tensor
    assert len(seen) == 1


@pytest.mark.parametrize("guard", list(Guard))
def test_a_tensors_storage_ends_where_it_ends(build: Build, guard: Guard) -> None:
    with build(guard, Outputs.POISONED) as memory:
        tensor = memory.copy("q", torch.randn(2000))
        assert torch.equal(tensor.clone(), tensor)
        assert tensor.untyped_storage().nbytes() == 8000


@pytest.mark.parametrize("guard", list(Guard))
def test_tensors_without_elements_have_no_memory(build: Build, guard: Guard) -> None:
    with build(guard, Outputs.POISONED) as memory:
        empty = memory.tensor("q", (0, 8), torch.float32, fill=Fill.OUTPUT)
        copied = memory.copy("k", torch.empty(3, 0))
        assert (empty.shape, copied.shape) == ((0, 8), (3, 0))
        assert empty.data_ptr() == 0
        assert [(each.name, each.nbytes) for each in memory.allocations()] == [("q", 0), ("k", 0)]
        assert [memory.content(each) for each in memory.allocations()] == [b"", b""]
        assert memory.seal(memory.allocations()).broken().result() == []
        assert memory.damage().result() == []


def test_a_tensor_is_flush_with_its_guard(memory: CudaMemory, arena: CudaArena) -> None:
    tensor = memory.tensor("q", (3, 5), torch.bfloat16)
    right = memory.allocations()[0].guard is Guard.RIGHT
    assert (tensor.data_ptr() + (30 if right else 0)) % arena.page == 0


def test_all_of_a_slab_is_watched(memory: CudaMemory, arena: CudaArena) -> None:
    tensor = memory.tensor("out", (10,), torch.float32)
    right = memory.allocations()[0].guard is Guard.RIGHT
    farthest = tensor.data_ptr() + 40 - arena.page if right else tensor.data_ptr() + arena.page - 1
    poke(farthest, b"\x00")
    (damage,) = memory.damage().result()
    assert (damage.offset, damage.count) == (farthest - tensor.data_ptr(), 1)


@pytest.mark.parametrize("sealed", [True, False])
def test_canaries_around_a_tensor_are_checked_from_the_first_seal_on(memory: CudaMemory, *, sealed: bool) -> None:
    made = [
        memory.copy("kv_lens", torch.tensor([3, 4], dtype=torch.int32)),
        memory.tensor("workspace", (2,), torch.int32, fill=Fill.ZEROS),
        memory.tensor("out", (2,), torch.float32, fill=Fill.OUTPUT),
    ]
    right = memory.allocations()[0].guard is Guard.RIGHT
    beside = [tensor.data_ptr() + (-1 if right else 8) for tensor in made]
    if sealed:
        # Of one of them: what is around the others is filled as well.
        assert memory.seal(memory.allocations()[:1]).broken().result() == []
    else:
        assert memory.damage().result() == []
    for address in beside:
        poke(address, b"\x55")
    memory.seal(memory.allocations())
    damage = [(each.name, each.count) for each in memory.damage().result()]
    assert damage == [("kv_lens", 1), ("workspace", 1), ("out", 1)]


@pytest.mark.slow
def test_memory_is_reused_only_when_its_storage_is_released(arena: CudaArena) -> None:
    def addresses() -> set[int]:
        with CudaMemory(arena, Guard.RIGHT, Outputs.POISONED) as memory:
            return {memory.tensor("t", (10,), torch.int32).data_ptr() for _ in range(3)}

    memory = CudaMemory(arena, Guard.RIGHT, Outputs.POISONED)
    tensor = memory.copy("held", torch.arange(10, dtype=torch.int32))
    address, view = tensor.data_ptr(), tensor[3:].view(torch.uint8)
    memory.release()
    del tensor
    gc.collect()
    assert address not in addresses()
    assert view[::4].tolist() == list(range(3, 10))
    del view
    gc.collect()
    assert address in addresses()


def test_a_renewed_output_holds_its_sentinel_again(memory: CudaMemory) -> None:
    out = memory.tensor("out", (4, 4), torch.float16, fill=Fill.OUTPUT)
    before = memory.content(memory.allocation_of(out))
    out.zero_()
    memory.renew(out)
    assert memory.content(memory.allocation_of(out)) == before


@pytest.mark.parametrize("fill", list(Fill))
def test_plain_memory_holds_the_same_values(memory: CudaMemory, fill: Fill) -> None:
    plain = PlainCudaMemory(Outputs.POISONED, torch.device("cpu"))
    ours, others = (each.tensor("q", (4, 6), torch.float16, fill=fill).view(torch.int16) for each in (memory, plain))
    assert torch.equal(ours, others)
    for each in (memory, plain):
        out = each.copy("out", torch.zeros(8))
        each.renew(out)
        assert out.isnan().all()
