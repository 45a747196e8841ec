"""Real faults in workers, and what the parent says of them."""

import msgspec
import pytest
from deadly_handlers import Touch

from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.workers.postmortem import Death, explain
from attnfuzz.harness.workers.supervisor import Workers
from attnfuzz.reference.case import Guard


def fault(workers: Workers, touch: Touch) -> Observation:
    death = workers.run(msgspec.json.encode(touch), timeout=30)
    assert isinstance(death, Death)
    return explain(death)


def reply(workers: Workers, touch: Touch) -> str:
    answer = workers.run(msgspec.json.encode(touch), timeout=30)
    assert isinstance(answer, bytes)
    return answer.decode()


@pytest.mark.slow
@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    ("guard", "offset", "where"),
    [
        (Guard.RIGHT, 40, "seq_lens: 0 bytes past the end (element 10 of 10)"),
        (Guard.RIGHT, 48, "seq_lens: 8 bytes past the end (element 12 of 10)"),
        (Guard.LEFT, -4, "seq_lens: 4 bytes before the start (element -1 of 10)"),
        (Guard.RIGHT, -4096, "seq_lens: 4096 bytes before the start (element -1024 of 10)"),
        (Guard.LEFT, 4096, "seq_lens: 4056 bytes past the end (element 1024 of 10)"),
        (Guard.RIGHT, 4 * 0x00BADBAD, "indexed with poison, 0x00badbad"),
        (Guard.LEFT, 4 * 0x00BADBAD, "indexed with poison, 0x00badbad"),
    ],
)
def test_an_access_out_of_bounds_names_tensor_and_offset(
    touching: Workers, guard: Guard, offset: int, where: str, *, write: bool
) -> None:
    seen = fault(touching, Touch("seq_lens", (10,), offset, guard, write))
    assert seen.kind is Kind.ILLEGAL_ACCESS
    assert seen.place == "seq_lens"
    assert (seen.step, seen.mode, seen.kernel) == (1, "decode", "some_kernel")
    assert seen.message.startswith("write at " if write else "read at ")
    assert where in seen.message
    assert seen.message.endswith("(killed by SIGSEGV), in some_kernel, step 1 (decode)")


@pytest.mark.parametrize("guard", list(Guard))
@pytest.mark.parametrize("page", [-1, 17, 0x00BADBAD, -0x00BADBAD])
def test_a_page_id_outside_of_the_pool_faults(touching: Workers, guard: Guard, page: int) -> None:
    pool = Touch("kv_cache", (17, 16, 8, 128), page * 16 * 8 * 128 * 4, guard)
    seen = fault(touching, pool)
    assert seen.kind is Kind.ILLEGAL_ACCESS
    assert seen.place == ("kv_cache" if page != -0x00BADBAD else "unmapped memory")


def test_accesses_inside_do_not_fault(touching: Workers) -> None:
    for guard in Guard:
        assert reply(touching, Touch("seq_lens", (10,), 36, guard, write=True)) == ""
        assert reply(touching, Touch("seq_lens", (10,), 0, guard, write=True)) == ""


def test_a_stray_write_on_the_unguarded_side_is_damage(touching: Workers) -> None:
    right = reply(touching, Touch("seq_lens", (10,), -4, Guard.RIGHT, write=True))
    assert right == "4 bytes overwritten before seq_lens, from 4 bytes before its start"
    left = reply(touching, Touch("seq_lens", (10,), 40, Guard.LEFT, write=True))
    assert left == "4 bytes overwritten after seq_lens, from 0 bytes past its end"


@pytest.mark.parametrize("guard", list(Guard))
def test_the_guard_survives_reuse_of_the_memory(touching: Workers, guard: Guard) -> None:
    elements = 19 * 1024
    edge = elements * 4 if guard is Guard.RIGHT else -4
    larger, smaller = 20 * 1024, 17 * 1024  # of the same size class: they live in the same slab
    for before in ((), (larger,), (smaller,), (larger, smaller, larger)):
        seen = fault(touching, Touch("out", (elements,), edge, guard, before=before))
        assert (seen.kind, seen.place) == (Kind.ILLEGAL_ACCESS, "out")
    far_edge = -4096 if guard is Guard.RIGHT else elements * 4 + 4096
    seen = fault(touching, Touch("out", (elements,), far_edge, guard, before=(larger,)))
    assert (seen.kind, seen.place) == (Kind.ILLEGAL_ACCESS, "out")


def test_a_null_pointer_is_blamed_on_the_tensor_without_elements(touching: Workers) -> None:
    # The tensor that is touched has no elements either, so that its address is null.
    seen = fault(touching, Touch("seq_lens", (0,), 16))
    assert seen.place == "null pointer"
    assert "null pointer + 16 bytes (tensors without elements: seq_lens, empty)" in seen.message
