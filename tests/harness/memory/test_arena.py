"""Slabs and their pages."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnfuzz.harness.memory.arena import PAGE, Arena, Reservation
from attnfuzz.harness.memory.slabs import OutOfMemory
from attnfuzz.reference.case import Guard

MIB = 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena(budget=4 * MIB, reserve=1 << 36) as arena:
        yield arena


def protection(address: int) -> str:
    """The protection of the page at `address`, as the kernel reports it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, flags, *_ = line.split()
        start, end = (int(bound, 16) for bound in span.split("-"))
        if start <= address < end:
            return flags[:2]
    return "unmapped"


@pytest.mark.parametrize("guard", list(Guard))
@pytest.mark.parametrize("pages", [1, 8, 9, 17, 100])
def test_exactly_the_pages_of_a_tensor_are_open(arena: Arena, guard: Guard, pages: int) -> None:
    slab = arena.take(pages * PAGE - 1, guard)
    assert slab.opened == pages * PAGE
    assert protection(slab.start) == protection(slab.start + slab.opened - 1) == "rw"
    assert protection(slab.start - 1) == protection(slab.start + slab.opened) == "--"
    assert protection(slab.start - 16 * MIB) == protection(slab.start + slab.opened + 16 * MIB - 1) == "--"


def test_a_reused_slab_unprotects_only_the_pages_of_its_new_tensor(arena: Arena) -> None:
    slab = arena.take(20 * PAGE, Guard.RIGHT)
    arena.give(slab)
    again = arena.take(18 * PAGE, Guard.LEFT)
    assert again is slab
    assert protection(again.address - 1) == "--"
    assert protection(again.address) == protection(again.address + 18 * PAGE - 1) == "rw"
    assert protection(again.address + 18 * PAGE) == "--"


def test_large_slabs_lie_farther_apart_than_their_own_size(arena: Arena) -> None:
    one, other = arena.take(64 * MIB, Guard.RIGHT), arena.take(64 * MIB, Guard.RIGHT)
    assert abs(one.address - other.address) >= 3 * 64 * MIB


def test_slabs_at_rest_keep_no_more_memory_than_the_budget(arena: Arena) -> None:
    slabs = [arena.take(MIB, Guard.RIGHT) for _ in range(10)]
    for slab in slabs:
        slab.buffer[slab.capacity - 1] = 7
        arena.give(slab)
    assert [protection(slab.address) for slab in slabs] == ["--"] * 6 + ["rw"] * 4
    cold = slabs[0]
    for _ in slabs:
        slab = arena.take(MIB, Guard.RIGHT)
        if slab is cold:
            assert slab.buffer[slab.capacity - 1] == 0


def test_no_address_space_is_a_clear_error() -> None:
    with (
        Arena(reserve=1 << 30) as arena,
        pytest.raises(OutOfMemory, match=r"no address space for .* draw smaller cases"),
    ):
        arena.take(1 << 29, Guard.RIGHT)


@pytest.mark.slow
def test_want_of_memory_uses_up_no_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OutOfMemory("none left")

    with Arena(reserve=1 << 30) as arena:
        with monkeypatch.context() as patch:
            patch.setattr(Reservation, "open", refuse)
            for _ in range(20):
                with pytest.raises(OutOfMemory, match="none left"):
                    arena.take(20 * MIB, Guard.RIGHT)
        slab = arena.take(20 * MIB, Guard.RIGHT)
        slab.buffer[slab.capacity - 1] = 1


@pytest.fixture
def little_address_space() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * PAGE
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.usefixtures("little_address_space")
def test_a_limit_on_virtual_memory_is_a_clear_error() -> None:
    with pytest.raises(OutOfMemory, match="ulimit -v"):
        Arena()
    with Arena(reserve=1 << 28) as arena:
        arena.take(PAGE, Guard.RIGHT)


def test_a_reservation_shrinks_to_the_size_that_the_system_grants() -> None:
    with Arena(reserve=1 << 60) as arena:
        arena.take(PAGE, Guard.RIGHT)
