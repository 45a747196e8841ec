"""Slabs of a GPU's memory: where they lie, when they are mapped, and what happens when there is no room."""

from itertools import pairwise

import pytest
import torch

pytest.importorskip("cuda.bindings", reason="compares with the installed cuda-bindings")

from fake_driver import GRANULARITY, FakeDriver
from fake_driver import driver as cuda

from attnfuzz.harness.memory.cuda.arena import CudaArena, CudaError
from attnfuzz.harness.memory.slabs import GAP, OutOfMemory

HOST = torch.device("cpu")
MIB = 1 << 20


@pytest.mark.parametrize("nbytes", [1, GRANULARITY, GRANULARITY + 1, 20 * GRANULARITY])
def test_a_slab_is_mapped_whole_and_nothing_beside_it(arena: CudaArena, driver: FakeDriver, nbytes: int) -> None:
    slab = arena.take(nbytes)
    assert driver.mapped == {slab.address: slab.capacity}
    assert slab.capacity % GRANULARITY == 0
    assert nbytes <= slab.capacity < max(1.25 * nbytes, nbytes + GRANULARITY)


def test_slabs_lie_far_apart_and_large_ones_farther_than_their_own_size(arena: CudaArena) -> None:
    slabs = sorted((arena.take(nbytes) for nbytes in (1, 1, 2 * MIB, 3 * MIB)), key=lambda slab: slab.address)
    for one, other in pairwise(slabs):
        assert other.address - (one.address + one.capacity) >= max(GAP, one.capacity, other.capacity)


def test_a_slab_at_rest_is_taken_again_as_it_is(arena: CudaArena, driver: FakeDriver) -> None:
    slab = arena.take(1000)
    arena.bytes_in(slab, 0, 1000)
    before = dict(driver.mapped)
    assert arena.take(500) is slab
    assert driver.mapped == before


def test_slabs_at_rest_keep_no_more_memory_than_the_budget(arena: CudaArena, driver: FakeDriver) -> None:
    tensors = [arena.bytes_in(arena.take(MIB // 2), 0, MIB // 2) for _ in range(6)]
    assert sum(driver.mapped.values()) == 3 * MIB
    tensors.clear()
    arena.settle()
    assert sum(driver.mapped.values()) == MIB
    # Those that were unmapped can be taken again.
    tensors = [arena.bytes_in(arena.take(MIB // 2), 0, MIB // 2) for _ in range(6)]
    for tensor in tensors:
        tensor.fill_(1)
    assert len(driver.mapped) == 6


def test_a_slab_that_is_taken_again_waits_for_no_unmapping(arena: CudaArena, driver: FakeDriver) -> None:
    tensors = [arena.bytes_in(arena.take(MIB), 0, MIB) for _ in range(3)]
    tensors.clear()
    arena.take(MIB)
    assert sum(driver.mapped.values()) == 3 * MIB
    # More memory is only mapped after idle memory is given up.
    arena.take(MIB // 2)
    assert sum(driver.mapped.values()) == 2.5 * MIB


def test_memory_at_rest_is_given_up_before_there_is_none_left(driver: FakeDriver) -> None:
    with CudaArena(device=HOST, budget=100 * MIB) as arena:
        resting = [arena.bytes_in(arena.take(MIB), 0, MIB) for _ in range(6)]
        resting.clear()
        arena.settle()
        assert sum(driver.mapped.values()) == 6 * MIB
        slab = arena.take(7 * MIB)
        assert driver.mapped == {slab.address: slab.capacity}


@pytest.mark.usefixtures("driver")
def test_no_memory_is_a_clear_error_after_which_the_arena_still_works() -> None:
    with CudaArena(device=HOST) as arena:
        held = arena.bytes_in(arena.take(5 * MIB), 0, 5 * MIB)
        with pytest.raises(OutOfMemory, match="draw smaller cases, or run fewer jobs"):
            arena.take(5 * MIB)
        del held
        arena.take(5 * MIB)


@pytest.mark.slow
@pytest.mark.usefixtures("driver")
def test_want_of_memory_uses_up_no_addresses() -> None:
    # Addresses begin in the middle: there is room for two of these.
    with CudaArena(device=HOST, reserve=256 * MIB) as arena:
        for _ in range(5):
            with pytest.raises(OutOfMemory, match="the GPU has no memory left"):
                arena.take(20 * MIB)
        arena.take(5 * MIB)


@pytest.mark.usefixtures("driver")
def test_no_address_space_is_a_clear_error() -> None:
    with (
        CudaArena(device=HOST, reserve=64 * MIB) as arena,
        pytest.raises(OutOfMemory, match=r"no address space for .* draw smaller cases"),
    ):
        arena.take(1)


def test_a_reservation_shrinks_to_the_size_that_the_driver_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeDriver(addresses=200 << 30).install(monkeypatch.setattr)
    with CudaArena(device=HOST) as arena:
        assert arena._space.nbytes == 128 << 30
        arena.take(1)


def test_a_reservation_that_is_refused_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeDriver(addresses=1 << 30).install(monkeypatch.setattr)
    with pytest.raises(OutOfMemory, match="needs 16 GiB of the GPU's address space, not of its memory"):
        CudaArena(device=HOST)


def test_an_error_of_the_driver_is_raised_with_its_name(arena: CudaArena, driver: FakeDriver) -> None:
    driver.error = cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(CudaError, match="cuMemCreate: CUDA_ERROR_ILLEGAL_ADDRESS"):
        arena.take(1)
    driver.error = cuda.CUresult.CUDA_SUCCESS


def test_a_closed_arena_leaves_nothing_mapped(driver: FakeDriver) -> None:
    with CudaArena(device=HOST) as arena:
        resting = arena.bytes_in(arena.take(1), 0, 1)
        del resting
        arena.take(MIB)
        assert len(driver.mapped) == 1 + 1
    assert not driver.mapped
