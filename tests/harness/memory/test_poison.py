"""Poison, sentinels and stale numbers."""

import pytest
import torch

from attnfuzz.harness.memory import poison
from attnfuzz.reference.dtypes import DType

DTYPES = list(dict.fromkeys(dtype.memory for dtype in DType))
FLOATS = [dtype for dtype in DTYPES if dtype.is_floating_point]
INTEGERS = [dtype for dtype in DTYPES if not dtype.is_floating_point]


def elements(content: bytes, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_poison_and_sentinel_are_nans_that_differ_from_each_other_and_from_computed_ones(
    dtype: torch.dtype,
) -> None:
    poisoned = poison.poison(dtype).content(64)
    sentinel = poison.sentinel(dtype).content(64)
    computed = (torch.zeros(64 // dtype.itemsize) / 0).to(dtype).view(torch.uint8).numpy().tobytes()
    assert elements(poisoned, dtype).float().isnan().all()
    assert elements(sentinel, dtype).float().isnan().all()
    assert poisoned != sentinel
    if dtype != torch.float8_e4m3fn:  # has no third NaN
        assert computed not in (poisoned, sentinel)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integer_poison_is_the_id_of_a_page_far_away(dtype: torch.dtype) -> None:
    assert set(elements(poison.poison(dtype).content(64), dtype).tolist()) == {0x00BADBAD}


@pytest.mark.parametrize("dtype", DTYPES)
def test_unwritten_masks_exactly_the_elements_that_hold_the_sentinel(dtype: torch.dtype) -> None:
    tensor = elements(poison.sentinel(dtype).content(12 * dtype.itemsize), dtype).view(3, 4)
    tensor[1, 2] = 1
    tensor.view(torch.uint8)[2, : dtype.itemsize] = 1
    expected = torch.ones(3, 4, dtype=torch.bool)
    expected[1, 2] = expected[2, 0] = False
    assert torch.equal(poison.unwritten(tensor), expected)
    assert torch.equal(poison.unwritten(tensor.T), expected.T)


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_computed_nan_counts_as_written(dtype: torch.dtype) -> None:
    assert not poison.unwritten(torch.full((4,), float("nan")).to(dtype)).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_stale_numbers_are_finite_varied_and_the_same_each_time(dtype: torch.dtype) -> None:
    content = poison.stale(dtype).content(4096)
    numbers = elements(content, dtype)
    assert numbers.float().isfinite().all()
    assert len(set(numbers.float().tolist())) > (1 if dtype == torch.bool else 16)
    assert content == poison.stale(dtype).content(4096)
    assert not poison.unwritten(numbers).any()


def test_patterns_longer_than_their_period_start_anew() -> None:
    nbytes = (1 << 18) + 24
    target = torch.zeros(nbytes, dtype=torch.uint8)
    poison.stale(torch.float32).write(target.data_ptr(), nbytes)
    content = poison.stale(torch.float32).content(nbytes)
    assert target.numpy().tobytes() == content
    assert content[1 << 18 :] == content[:24]


def test_a_dtype_without_poison_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="complex64"):
        poison.poison(torch.complex64).content(8)
    with pytest.raises(ValueError, match="complex64"):
        poison.stale(torch.complex64).content(8)
    with pytest.raises(ValueError, match="complex64"):
        poison.unwritten(torch.zeros(2, dtype=torch.complex64))
