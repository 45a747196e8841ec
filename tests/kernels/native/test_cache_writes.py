"""The ops that write into a KV cache, where drawn cases of the native writers do not come.

That is tokens in fp8, NaN and infinities, every rounding, and arguments that are refused.
"""

from collections.abc import Callable

import pytest
import torch

from attnfuzz.kernels.cache_writes import interfaces
from attnfuzz.kernels.native import write_ops

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]
FLOATS = DTYPES[:3]
E4M3 = torch.float8_e4m3fn
PAGES, SIZE, HEADS, DIM = 7, 4, 3, 24
SLOTS = torch.tensor([23, 0, 1, 2, 3, 8, 27])
"""Slots of new tokens, on pages 5, 0, 2 and 6."""


def draw(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * 3).to(dtype)


def written(pool: torch.Tensor, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The bits of a copy of `pool` [pages, slots, ...] with tokens at these slots."""
    pool = pool.clone()
    bits(pool)[slots // pool.shape[1], slots % pool.shape[1]] = bits(tokens)
    return bits(pool)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def pool_of(dtype: torch.dtype, dim: int = DIM) -> torch.Tensor:
    return draw(PAGES, SIZE, HEADS, dim, dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_fp8_caches_hold_tokens_divided_by_their_scales_rounded_and_saturated(dtype: torch.dtype) -> None:
    key, value = draw(7, HEADS, DIM, dtype=dtype), draw(7, HEADS, DIM, dtype=dtype) * 30
    key[0, 0, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e-9])
    caches = pool_of(E4M3), pool_of(E4M3)
    expected = [
        written(pool, SLOTS, (tokens.float() / scale).clamp(-448, 448).to(E4M3))
        for pool, tokens, scale in zip(caches, (key, value), (0.7, 0.13), strict=True)
    ]
    write_ops.reshape_and_cache_flash(key, value, *caches, SLOTS, "fp8", 0.7, 0.13)
    assert all(bits(pool).equal(right) for pool, right in zip(caches, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_store_writes_to_token_indices(dtype: torch.dtype, index: torch.dtype) -> None:
    key, value = draw(7, HEADS, DIM, dtype=dtype), draw(7, HEADS, 16, dtype=dtype)
    caches = pool_of(dtype), pool_of(dtype, 16)
    expected = [written(pool, SLOTS, tokens) for pool, tokens in zip(caches, (key, value), strict=True)]
    interfaces.store_cache(
        key=key,
        value=value,
        k_cache=caches[0],
        v_cache=caches[1],
        slot_mapping=SLOTS.to(index),
        k_scale=1.0,
        v_scale=1.0,
        kv_layout="NHD",
        reserved_skip_index=-1,
    )
    assert all(bits(pool).equal(right) for pool, right in zip(caches, expected, strict=True))


def test_of_two_tokens_in_one_slot_the_last_one_stays() -> None:
    key, cache = draw(2, HEADS, DIM, dtype=torch.float32), pool_of(torch.float32)
    write_ops.reshape_and_cache_flash(key, key, cache, cache.clone(), torch.tensor([9, 9]))
    assert cache[2, 1].equal(key[1])


def test_every_fp32_near_an_e4m3_value_is_rounded_as_torch_rounds_it() -> None:
    exact = torch.arange(256).to(torch.uint8).view(E4M3).float()
    exact = exact[exact.isfinite()].sort().values
    halfway = (exact[1:] + exact[:-1]) / 2
    near = torch.cat([exact, halfway, halfway.nextafter(torch.tensor(1e9)), halfway.nextafter(torch.tensor(-1e9))])
    key = torch.cat([near, torch.tensor([2.0**-10, 2.0**-11, 1e-30, 448.1, 464.0, 479.9, 1e30])]).view(-1, 1, 1)
    cache = torch.zeros(len(key), 1, 1, 1, dtype=E4M3)
    caches = cache, cache.clone()
    write_ops.reshape_and_cache_flash(key, -key, *caches, torch.arange(len(key)), "fp8")
    for pool, tokens in zip(caches, (key, -key), strict=True):
        assert bits(pool.flatten()).equal(bits(tokens.clamp(-448, 448).to(E4M3).flatten()))


def test_scales_of_another_form_are_rejected_by_name() -> None:
    key = draw(len(SLOTS), HEADS, DIM, dtype=torch.bfloat16)
    cache = torch.zeros(PAGES, SIZE, HEADS, DIM).to(E4M3)
    ones = torch.ones(HEADS)
    with pytest.raises(ValueError, match="k_scale must be float32"):
        write_ops.reshape_and_cache_flash(key, key, cache, cache, SLOTS, "fp8", ones.double(), ones)
    with pytest.raises(ValueError, match="v_scale must have a scale for each of 3 heads"):
        write_ops.reshape_and_cache_flash(key, key, cache, cache, SLOTS, "fp8", ones, ones[:2])
    with pytest.raises(ValueError, match="k_scale_cache must have 3 axes"):
        interfaces.reshape_and_cache_token_head(
            key=key,
            value=key,
            k_cache=cache,
            v_cache=cache,
            slot_mapping=SLOTS,
            k_scales=ones,
            v_scales=ones,
            kv_layout="NHD",
        )


@pytest.mark.parametrize(
    ("copy", "arguments"),
    [
        (interfaces.copy_pages, {"page_pairs": torch.tensor([[0, 2]])}),
        (interfaces.move_tokens, {"source_slots": torch.tensor([4]), "target_slots": torch.tensor([0])}),
    ],
)
def test_copies_refuse_caches_of_packed_numbers(copy: Callable[..., None], arguments: dict[str, torch.Tensor]) -> None:
    cache = torch.zeros(4, 2, 1, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match="must not be uint8"):
        copy(k_cache=cache, v_cache=cache, kv_layout="NHD", **arguments)
