"""Strides, extents and overlaps; and an address in words."""

import pytest
import torch

from attnfuzz.harness.memory import allocation as layout
from attnfuzz.harness.memory.allocation import Allocation, locate
from attnfuzz.reference.case import Guard


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (2, 1, 4)])
def test_dense_strides_are_those_that_torch_gives(shape: tuple[int, ...]) -> None:
    assert layout.dense_stride(shape) == torch.empty(shape).stride()


@pytest.mark.parametrize(
    ("shape", "stride", "expected"),
    [((), (), 1), ((5,), (1,), 5), ((2, 3), (8, 2), 13), ((2, 0), (4, 1), 0), ((1, 3), (99, 1), 3)],
)
def test_extent_reaches_from_the_first_to_the_last_element(
    shape: tuple[int, ...], stride: tuple[int, ...], expected: int
) -> None:
    assert layout.extent(shape, stride) == expected


@pytest.mark.parametrize(("shape", "stride"), [((4, 3), (2, 1)), ((4,), (0,)), ((2, 2), (1, 1))])
def test_overlapping_strides_are_refused(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"q: .* overlap"):
        layout.check_strides("q", shape, stride)


def test_strides_of_the_wrong_number_or_sign_are_refused() -> None:
    with pytest.raises(ValueError, match="1 strides for 2 dimensions"):
        layout.check_strides("q", (2, 3), (1,))
    with pytest.raises(ValueError, match="negative"):
        layout.check_strides("q", (2, 3), (3, -1))


@pytest.mark.parametrize(("shape", "stride"), [((2, 3, 4), (4, 8, 1)), ((2, 3), (16, 2)), ((1, 3), (0, 1)), ((), ())])
def test_permuted_and_gapped_strides_are_accepted(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    layout.check_strides("q", shape, stride)


BASE = 1 << 44


def allocation(name: str, address: int, shape: tuple[int, ...], itemsize: int = 4) -> Allocation:
    stride = tuple(_product(shape[axis + 1 :]) for axis in range(len(shape)))
    nbytes = _product(shape) * itemsize
    return Allocation(name, address if nbytes else 0, nbytes, shape, "int32", itemsize, stride, Guard.RIGHT)


def _product(sizes: tuple[int, ...]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


LENS = allocation("seq_lens", BASE, (10,))
POOL = allocation("k_cache", BASE + (1 << 30), (17, 8, 16, 128), 2)
PAGE_BYTES = 8 * 16 * 128 * 2
TABLE = allocation("block_tables", BASE + (2 << 30), (3, 5))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (BASE + 48, "seq_lens: 8 bytes past the end (element 12 of 10)"),
        (BASE + 40, "seq_lens: 0 bytes past the end (element 10 of 10)"),
        (BASE - 4, "seq_lens: 4 bytes before the start (element -1 of 10)"),
        (BASE + 8, "seq_lens: 8 bytes inside (element 2 of 10)"),
        (POOL.address - PAGE_BYTES, f"k_cache: {PAGE_BYTES} bytes before the start (row -1 of 17)"),
        (TABLE.address + 60, "block_tables: 0 bytes past the end (row 3 of 3)"),
        (
            POOL.address + 0x00BADBAD * PAGE_BYTES + 100,
            f"k_cache: {(0x00BADBAD - 17) * PAGE_BYTES + 100} bytes past the end (indexed with poison, 0x00badbad)",
        ),
        (8, "null pointer: null pointer + 8 bytes"),
        ((1 << 30) + 100, f"k_cache: {(1 << 30) + 100:#x}, as if its pointer had been cut to 32 bits"),
        (0x7FFD << 32 | 24, f"seq_lens: {0x7FFD << 32 | 24:#x}, as if its pointer had been cut to 32 bits"),
        ((1 << 64) - (1 << 31) + 8, "block_tables: 0xffffffff80000008, as if its pointer had been cut to 32 bits"),
    ],
)
def test_an_address_names_the_tensor_that_was_meant(address: int, expected: str) -> None:
    assert str(locate([LENS, POOL, TABLE], address)) == expected


def test_an_index_is_along_the_largest_axis_with_several_entries() -> None:
    row = allocation("q", BASE, (1, 1, 16))
    assert str(locate([row], BASE + 64)) == "q: 0 bytes past the end (index 16 of 16 along axis 2)"


def test_an_address_far_from_everything_has_the_same_place_wherever_it_is() -> None:
    one, other = (locate([LENS, POOL], BASE + offset) for offset in (1 << 36, -(1 << 38)))
    assert one.place == other.place == "unmapped memory"
    assert "far from every tensor (nearest: " in one.relation


def test_a_null_pointer_is_blamed_on_the_only_tensor_without_elements() -> None:
    empty = allocation("kv_indices", 0, (0,))
    assert str(locate([LENS, empty], 16)) == "kv_indices: null pointer + 16 bytes (it has no elements)"
    both = locate([LENS, empty, allocation("q", 0, (0, 8))], 16)
    assert str(both) == "null pointer: null pointer + 16 bytes (tensors without elements: kv_indices, q)"


def test_without_tensors_an_address_is_only_itself() -> None:
    assert str(locate([], BASE)) == f"unmapped memory: {BASE:#x}, with no tensor on record"
