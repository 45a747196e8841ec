"""The fp8 numbers that a cache may hold."""

import math

import pytest
import torch

from attnfuzz.kernels.cache_writes.stored import Conversion
from attnfuzz.reference.dtypes import DType

FP8 = DType.FLOAT8_E4M3


def bounds(value: float, scale: float = 1.0, conversion: Conversion = Conversion()) -> list[float]:
    return [each.item() for each in map(torch.Tensor.float, conversion.bounds(torch.tensor([value]), scale, FP8))]


def test_a_copy_keeps_every_bit() -> None:
    values = torch.tensor([torch.nan, -0.0], dtype=torch.bfloat16)
    low, high = Conversion().bounds(values, 2.0, DType.BFLOAT16)
    assert low is values
    assert high is values


@pytest.mark.parametrize(("value", "due"), [(1.0, 1.0), (1.1, 1.125), (-0.3, -0.3125), (2.0**-9, 2.0**-9), (0.0, 0.0)])
def test_a_number_is_rounded_to_the_nearest(value: float, due: float) -> None:
    assert bounds(value) == [due, due]


def test_a_tie_may_go_either_way() -> None:
    assert bounds(1.0625) == [1.0, 1.125]


def test_a_quotient_near_a_tie_may_go_either_way() -> None:
    assert bounds(1.0625 * 0.37, 0.37) == [1.0, 1.125]
    assert bounds(1.07 * 0.37, 0.37) == [1.125, 1.125]


def test_large_numbers_saturate_unless_they_need_not() -> None:
    assert bounds(torch.inf) == bounds(500.0) == [448.0, 448.0]
    assert bounds(500.0, conversion=Conversion(saturates=False)) == pytest.approx([448.0, math.nan], nan_ok=True)
    assert bounds(-torch.inf, conversion=Conversion(saturates=False)) == pytest.approx([math.nan, -448.0], nan_ok=True)


def test_nan_stays_nan() -> None:
    assert all(map(math.isnan, bounds(torch.nan)))


def test_a_quotient_in_bf16_may_be_further_off() -> None:
    assert bounds(1.064, conversion=Conversion(error=2.0**-9)) == [1.0, 1.125]
    assert bounds(1.064) == [1.125, 1.125]


def scale_bounds(*rows: list[float]) -> list[tuple[float, float]]:
    low, high = Conversion().scales(torch.tensor(rows).unsqueeze(1))
    return [(least.item(), most.item()) for least, most in zip(low, high, strict=True)]


def test_a_scale_is_the_largest_magnitude_over_448_up_to_its_rounding() -> None:
    ((low, high),) = scale_bounds([1.0, -3.0, 2.0])
    due = torch.tensor(3.0) / 448
    assert low < due < high
    assert high - low < due * 2**-20


def test_a_small_scale_may_be_raised_and_that_of_zeros_is_any_up_to_1() -> None:
    (small, zeros) = scale_bounds([1e-7, 0.0], [0.0, 0.0])
    assert list(small) == pytest.approx([1e-7 / 448, 1e-6])
    assert zeros == (0.0, 1.0)


def test_elements_follow_from_the_scale_that_the_cache_holds() -> None:
    values = torch.tensor([[[448.0, 31.0]]])
    for held, due in ((1.0, 31.0), (1.0 + 2**-23, 31.0), (2.0, 15.5)):
        scale = Conversion().scales_held(values, torch.tensor([[[held]]]))
        low, high = Conversion().bounds(values, scale, FP8)
        assert low[0, 0, 1].float() <= torch.tensor(due).to(torch.float8_e4m3fn).float() <= high[0, 0, 1].float()


@pytest.mark.parametrize("held", [torch.nan, torch.inf, 0.0, -1.0])
def test_elements_follow_from_the_due_scale_where_the_cache_holds_none(held: float) -> None:
    values = torch.tensor([[[448.0, 31.0]]])
    assert Conversion().scales_held(values, torch.tensor([[[held]]])).item() == pytest.approx(1.0)


def test_a_row_of_zeros_is_zero_under_any_scale() -> None:
    low, high = Conversion().bounds(torch.zeros(1, 1, 2), torch.zeros(1, 1, 1), FP8)
    assert low.float().tolist() == high.float().tolist() == [[[0.0, 0.0]]]
