"""NVFP4: the nearest of 16 numbers, two in a byte, and scales of blocks."""

import pytest
import torch

from attnfuzz.reference import nvfp4

CODES = torch.arange(16, dtype=torch.uint8)


def test_every_number_is_its_own_nearest() -> None:
    assert nvfp4.rounded(nvfp4.numbers(CODES)).equal(CODES)


@pytest.mark.parametrize(
    ("value", "due"),
    [(0.25, 0.0), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0), (5.01, 6.0), (1e9, 6.0)],
)
def test_ties_go_to_even_codes_and_large_numbers_saturate(value: float, due: float) -> None:
    both = nvfp4.numbers(nvfp4.rounded(torch.tensor([value, -value])))
    assert both.tolist() == [due, -due]


def test_the_first_of_two_numbers_is_in_the_low_bits() -> None:
    codes = torch.tensor([[1, 10]], dtype=torch.uint8)
    assert nvfp4.packed(codes).tolist() == [[0xA1]]
    assert nvfp4.unpacked(nvfp4.packed(codes)).float().tolist() == [[0.5, -1.0]]


def test_a_block_is_scaled_by_its_largest_magnitude_over_6() -> None:
    values = torch.zeros(1, 1, 48)
    values[..., 3], values[..., 20], values[..., 21] = -3.0, 1e5, 1.0
    scales = nvfp4.block_scales(values)
    assert scales.float().tolist() == [[[0.5, 448.0, 0.0]]]
    found = nvfp4.dequantised(nvfp4.quantised(values, scales), scales)
    assert found[0, 0, 3] == -3.0
    assert found[0, 0, 20] == 6 * 448
    assert found.count_nonzero() == 2
