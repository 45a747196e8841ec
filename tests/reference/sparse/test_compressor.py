"""The compressor: pooling by channel, two parts of overlapping windows, rotation by a group's first position."""

import torch

from attnfuzz.reference.sparse.compressor import Pooling, cos_sin_table, parts_of, window_of

DIM = 8


def pooling(ratio: int, *, seed: int = 0, missing: int = 0, weight: torch.Tensor | None = None) -> Pooling:
    draws = torch.Generator().manual_seed(seed)
    shape = (1, window_of(ratio), DIM * parts_of(ratio))
    values, scores = torch.randn(shape, generator=draws), torch.randn(shape, generator=draws)
    values[:, :missing] = scores[:, :missing] = torch.nan
    weights = torch.ones(DIM) if weight is None else weight
    return Pooling(values, scores, torch.tensor([ratio - 1]), weights, cos_sin_table(16, DIM), ratio)


def middle(of: Pooling) -> torch.Tensor:
    low, high = of.bounds
    assert bool((low.float() <= high.float()).all())
    return (low.double() + high.double()) / 2


def test_windows_overlap_at_a_ratio_of_4_alone() -> None:
    assert [(window_of(ratio), parts_of(ratio)) for ratio in (2, 4, 128)] == [(2, 1), (8, 2), (128, 1)]


def test_a_key_is_the_normalised_mean_by_the_softmax_of_each_channel() -> None:
    one = pooling(2)
    shares = one.scores.double().softmax(1)
    mean = (shares * one.values.double()).sum(1)
    expected = mean / mean.square().mean().sqrt()
    # Position 1 is in the group of position 0, whose rotation is none.
    assert torch.allclose(middle(one), expected, rtol=2.0**-7, atol=1e-3)


def test_a_window_before_the_request_is_left_out() -> None:
    short = pooling(4, missing=4)
    own = short.values[:, 4:, DIM:].double()
    mean = (short.scores[:, 4:, DIM:].double().softmax(1) * own).sum(1)
    assert torch.allclose(middle(short), mean / mean.square().mean().sqrt(), rtol=2.0**-7, atol=1e-3)


def test_the_second_half_is_rotated_by_the_first_position_of_the_group() -> None:
    still = pooling(4)
    turned = Pooling(still.values, still.scores, torch.tensor([7]), still.weight, still.table, 4)
    half = DIM // 2
    assert torch.equal(middle(still)[:, :half], middle(turned)[:, :half])
    even, odd = middle(still)[:, half::2], middle(still)[:, half + 1 :: 2]
    cos, sin = still.table[4].double().split(half // 2)
    assert torch.allclose(middle(turned)[:, half::2], even * cos - odd * sin, atol=2.0**-6)
    assert torch.allclose(middle(turned)[:, half + 1 :: 2], even * sin + odd * cos, atol=2.0**-6)


def test_numbers_and_scales_hold_the_key() -> None:
    one = pooling(4)
    low, high = one.scales
    assert float(high) in (float(low), 2 * float(low))
    numbers = one.numbers(high)
    held = (middle(one) / high.double()[:, None]).to(torch.float8_e4m3fn).float()
    assert bool((numbers.low.float() <= held).all())
    assert bool((held <= numbers.high.float()).all())
