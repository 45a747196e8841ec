"""Strides, extents and overlaps."""

import pytest
import torch

from attnfuzz.harness.memory import allocation as layout


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
