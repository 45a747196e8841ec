"""Where a backend lists its head dims, the reducer moves among them."""

from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.reduce import reduce
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode

CAN = Capability(modes=(Mode.DECODE,), head_dims=(96, 128, 192), unequal_head_dims=True)


def case_of(qk: int, vo: int) -> Case:
    geometry = replace(HEADS, head_dim_qk=qk, head_dim_vo=vo)
    return Case(backend="any", geometry=geometry, steps=(step(Mode.DECODE, (1, 9)),))


def test_the_smallest_listed_head_dim_is_reached() -> None:
    reduced = reduce(case_of(192, 192), CAN.can_run, capability=CAN)
    assert (reduced.geometry.head_dim_qk, reduced.geometry.head_dim_vo) == (96, 96)


def test_each_head_dim_is_reduced_for_itself() -> None:
    reduced = reduce(case_of(192, 128), lambda case: case.geometry.head_dim_qk > 100, capability=CAN)
    assert (reduced.geometry.head_dim_qk, reduced.geometry.head_dim_vo) == (128, 96)
