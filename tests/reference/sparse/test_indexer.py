"""The indexer's keys and scores: scales, layout of a page, and bounds that right results keep."""

import pytest
import torch

from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.sparse import packed
from attnfuzz.reference.sparse.indexer import Scoring, key_bounds, key_view, quantise, scale_bounds, scale_view

ROWS, HEADS, DIM, KEYS = 6, 4, 64, 50


@pytest.mark.parametrize("powers", [False, True])
def test_quantised_keys_are_within_their_bounds_and_near_the_keys(powers: bool) -> None:
    keys = torch.randn(20, DIM, generator=torch.Generator().manual_seed(1)) * torch.logspace(-6, 4, 20)[:, None]
    keys[3] = 0
    quantised = quantise(keys, powers=powers)
    scales, numbers = scale_bounds(keys, powers=powers), key_bounds(keys, quantised.scales)
    assert bool((scales.low <= quantised.scales).all())
    assert bool((quantised.scales <= scales.high).all())
    held = quantised.keys.float()
    assert bool((numbers.low.float() <= held).all())
    assert bool((held <= numbers.high.float()).all())
    # Half a step of e4m3: 2^-4 of a number, or 2^-10 near zero.
    error = (held * quantised.scales[:, None] - keys).abs()
    assert bool((error <= keys.abs() * 2.0**-4 + quantised.scales[:, None] * 2.0**-10).all())
    if powers:
        assert torch.equal(torch.frexp(quantised.scales).mantissa, torch.full((20,), 0.5))


def test_a_key_of_448_has_a_scale_of_one_power_or_the_next() -> None:
    low, high = scale_bounds(torch.full((1, 4), 448.0), powers=True)
    assert (float(low), float(high)) == (1.0, 2.0)
    assert float(scale_bounds(torch.full((1, 4), 449.0), powers=True).low) == 2.0


def test_a_page_has_its_keys_then_their_scales() -> None:
    cache = torch.zeros(2, 3 * (8 + 4), dtype=torch.uint8)
    key_view(cache, 3)[1, 2, 0, 7] = 5
    scale_view(cache, 3).view(torch.float32)[1, 2, 0, 0] = 1.0
    assert cache[1, 2 * 8 + 7] == 5
    assert cache[1, 3 * 8 + 2 * 4 :].tolist() == [0, 0, 128, 63]


def scoring(outside: float | None = -torch.inf) -> Scoring:
    draws = torch.Generator().manual_seed(0)
    keys, scales = quantise(torch.randn(KEYS, DIM, generator=draws), powers=False)
    queries = torch.randn(ROWS, HEADS, DIM, generator=draws).to(torch.float8_e4m3fn)
    weights = torch.randn(ROWS, HEADS, generator=draws)
    return Scoring(
        queries, weights, keys, scales, (0, 0, 0, 20, 20, 0), (0, 0, 0, 20, 20, 0), (5, 6, 7, 29, 30, 0), KEYS, outside
    )


def in_float32(problem: Scoring) -> torch.Tensor:
    products = torch.einsum("rhd,nd->rhn", problem.queries.float(), problem.keys.float())
    return (products.relu() * problem.weights[..., None]).sum(1) * problem.scales


def test_scores_in_float32_are_within_the_bounds_and_lost_heads_are_not() -> None:
    problem = scoring()
    low, high = problem.bounds(NoiseModel.fp32_arithmetic(), 1e-9)
    seen = problem.right > -torch.inf
    scores = in_float32(problem)
    assert bool(((low <= scores) & (scores <= high))[seen].all())
    assert float((high - low)[seen].max()) < 1e-3 * float(problem.right[seen].abs().max())
    without = (
        torch.einsum("rhd,nd->rhn", problem.queries.float(), problem.keys.float()).relu()[:, 1:]
        * problem.weights[:, 1:, None]
    ).sum(1) * problem.scales
    assert int(((low <= without) & (without <= high))[seen].sum()) < int(seen.sum()) // 2 + 20


def test_columns_outside_of_a_row_hold_minus_infinity_or_anything() -> None:
    problem, noise = scoring(), NoiseModel.fp32_arithmetic()
    low, high = problem.bounds(noise, 1e-9)
    assert bool((low[5] == -torch.inf).all())
    assert bool((high[5] == -torch.inf).all())
    low, high = scoring(None).bounds(noise, 1e-9)
    assert bool(low[5].isnan().all())
    assert bool((high[5] == torch.inf).all())


def test_packed_latents_have_656_bytes_and_a_scale_for_each_128_numbers() -> None:
    latents = torch.randn(3, 576, generator=torch.Generator().manual_seed(2))
    latents[0, 128:256] *= 1000
    data = packed.pack(latents)
    assert data.shape == (3, 656)
    assert data[0, 512:528].view(torch.float32)[1] > 100 * data[0, 512:528].view(torch.float32)[0]
    restored = packed.unpack(data)
    assert float(((restored - latents).abs() / latents.abs().clamp_min(1e-2)).median()) < 2.0**-4
    assert torch.equal(restored[:, 512:], latents[:, 512:].to(torch.bfloat16).double())
