"""The ops that write into a KV cache, against torch's indexing, bit for bit, through the whole pool."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from attnfuzz.kernels.native import transform_ops, write_ops
from attnfuzz.reference import nvfp4

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]
FLOATS = DTYPES[:3]
LAYOUTS = ["NHD", "HND"]
E4M3 = torch.float8_e4m3fn
PAGES, SIZE, HEADS, DIM, ROPE = 7, 4, 3, 24, 8
LENGTHS, Q_LENS = (9, 4, 1), (6, 1, 0)
"""Requests of 3, 1 and 1 pages, and their new tokens."""
IDS = torch.tensor([5, 0, 2, 6, 4], dtype=torch.int32)
INDPTR = torch.tensor([0, 3, 4, 5], dtype=torch.int32)


def draw(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * 3).to(dtype)


@dataclass(frozen=True)
class Batch:
    """The new tokens of the requests: whose and where they are."""

    requests: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor


@pytest.fixture(scope="module")
def batch() -> Batch:
    lengths, q_lens = torch.tensor(LENGTHS), torch.tensor(Q_LENS)
    requests = torch.arange(len(LENGTHS)).repeat_interleave(q_lens)
    positions = torch.cat([torch.arange(n - q, n) for n, q in zip(lengths, q_lens, strict=True)])
    pages = IDS[INDPTR[requests] + positions // SIZE].long()
    return Batch(requests.int(), positions.int(), pages * SIZE + positions % SIZE)


def indices(batch: Batch) -> dict[str, Any]:
    """FlashInfer's description of the batch."""
    return {
        "batch_indices": batch.requests,
        "positions": batch.positions,
        "kv_indices": IDS,
        "kv_indptr": INDPTR,
        "kv_last_page_len": torch.tensor([1, 4, 1], dtype=torch.int32),
    }


def written(pool: torch.Tensor, slots: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The bits of a copy of `pool` [pages, slots, ...] with tokens at these slots."""
    pool = pool.clone()
    bits(pool)[slots // pool.shape[1], slots % pool.shape[1]] = bits(tokens)
    return bits(pool)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def token_major(pool: torch.Tensor, layout: str) -> torch.Tensor:
    return pool if layout == "NHD" else pool.transpose(1, 2)


def pool_of(layout: str, dtype: torch.dtype, dim: int = DIM) -> torch.Tensor:
    inner = (SIZE, HEADS) if layout == "NHD" else (HEADS, SIZE)
    return draw(PAGES, *inner, dim, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_append_writes_each_token_to_its_position(batch: Batch, dtype: torch.dtype, layout: str) -> None:
    key, value = draw(2, 7, HEADS, DIM, dtype=dtype)
    caches = pool_of(layout, dtype), pool_of(layout, dtype) if layout == "NHD" else pool_of("HND", dtype, DIM)
    expected = [
        written(token_major(pool, layout), batch.slots, tokens)
        for pool, tokens in zip(caches, (key, value), strict=True)
    ]
    write_ops.append_paged_kv_cache(key, value, paged_kv_cache=caches, kv_layout=layout, **indices(batch))
    assert all(bits(token_major(pool, layout)).equal(right) for pool, right in zip(caches, expected, strict=True))


def test_append_splits_a_paired_cache(batch: Batch) -> None:
    cache, (key, value) = (
        draw(PAGES, 2, SIZE, HEADS, DIM, dtype=torch.float16),
        draw(2, 7, HEADS, DIM, dtype=torch.float16),
    )
    expected = [written(cache[:, member], batch.slots, tokens) for member, tokens in enumerate((key, value))]
    write_ops.append_paged_kv_cache(key, value, paged_kv_cache=cache, **indices(batch))
    assert bits(cache[:, 0]).equal(expected[0])
    assert bits(cache[:, 1]).equal(expected[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_append_mla_writes_both_parts_of_a_latent(batch: Batch, dtype: torch.dtype) -> None:
    latent, cache = draw(7, DIM + ROPE, dtype=dtype), draw(PAGES, SIZE, DIM + ROPE, dtype=dtype)
    expected = written(cache, batch.slots, latent)
    write_ops.append_paged_mla_kv_cache(
        latent[:, :DIM], latent[:, DIM:], ckv_cache=cache[..., :DIM], kpe_cache=cache[..., DIM:], **indices(batch)
    )
    assert bits(cache).equal(expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reshape_and_cache_writes_to_slots_and_skips_negative_ones(
    batch: Batch, dtype: torch.dtype, layout: str
) -> None:
    key, value = draw(9, HEADS, DIM, dtype=dtype), draw(9, HEADS, 16, dtype=dtype)
    caches = pool_of(layout, dtype), pool_of(layout, dtype, 16)
    slots = torch.cat([batch.slots, torch.tensor([-1, -7])])
    expected = [
        written(token_major(pool, layout), batch.slots, tokens[:7])
        for pool, tokens in zip(caches, (key, value), strict=True)
    ]
    write_ops.reshape_and_cache_flash(key, value, *caches, slots, kv_layout=layout)
    assert all(bits(token_major(pool, layout)).equal(right) for pool, right in zip(caches, expected, strict=True))


@pytest.mark.parametrize("dtype", FLOATS)
def test_fp8_caches_hold_tokens_divided_by_their_scales_rounded_and_saturated(batch: Batch, dtype: torch.dtype) -> None:
    key, value = draw(7, HEADS, DIM, dtype=dtype), draw(7, HEADS, DIM, dtype=dtype) * 30
    key[0, 0, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e-9])
    caches = pool_of("NHD", E4M3), pool_of("NHD", E4M3)
    expected = [
        written(pool, batch.slots, (tokens.float() / scale).clamp(-448, 448).to(E4M3))
        for pool, tokens, scale in zip(caches, (key, value), (0.7, 0.13), strict=True)
    ]
    write_ops.reshape_and_cache_flash(key, value, *caches, batch.slots, "fp8", 0.7, 0.13)
    assert all(bits(pool).equal(right) for pool, right in zip(caches, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_concat_and_cache_writes_a_latent_beside_its_rotary_part(batch: Batch, dtype: torch.dtype) -> None:
    latent, cache = draw(8, DIM + ROPE, dtype=dtype), draw(PAGES, SIZE, DIM + ROPE, dtype=dtype)
    expected = written(cache, batch.slots, latent[:7])
    slots = torch.cat([batch.slots, torch.tensor([-1])])
    write_ops.concat_and_cache_mla(latent[:, :DIM], latent[:, DIM:], cache, slots)
    assert bits(cache).equal(expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_store_writes_to_token_indices(batch: Batch, dtype: torch.dtype, index: torch.dtype) -> None:
    key, value = draw(7, HEADS, DIM, dtype=dtype), draw(7, HEADS, 16, dtype=dtype)
    caches = pool_of("NHD", dtype), pool_of("NHD", dtype, 16)
    expected = [written(pool, batch.slots, tokens) for pool, tokens in zip(caches, (key, value), strict=True)]
    pools, slots = (caches[0].flatten(0, 1), caches[1].flatten(0, 1)), batch.slots.to(index)
    write_ops.store_kv_cache(key, value, *pools, slots, reserved_skip_index=-1)
    assert all(bits(pool).equal(right) for pool, right in zip(caches, expected, strict=True))


def test_tokens_may_be_slices_of_a_fused_row_and_caches_may_have_gaps(batch: Batch, guarded: Any) -> None:
    row = (2 * HEADS + 2) * DIM
    for right in (True, False):
        with guarded(right=right) as memory:
            fused = memory.copy(draw(7, row, dtype=torch.bfloat16))
            heads = fused.unflatten(1, (-1, DIM))
            key, value = heads[:, 2 : 2 + HEADS], heads[:, 2 + HEADS :]
            stride = (SIZE * HEADS * (DIM + 8) + 16, HEADS * (DIM + 8), DIM + 8, 1)
            pool = pool_of("NHD", torch.bfloat16)
            caches = memory.copy(pool, stride=stride), memory.copy(pool, stride=stride)
            whole = [pool.as_strided((PAGES - 1, stride[0]), (stride[0], 1)).clone() for pool in caches]
            expected = [written(pool, batch.slots, tokens) for pool, tokens in zip(caches, (key, value), strict=True)]
            write_ops.reshape_and_cache_flash(key, value, *caches, batch.slots)
            for pool, before, due in zip(caches, whole, expected, strict=True):
                assert bits(pool).equal(due)
                after = pool.as_strided((PAGES - 1, stride[0]), (stride[0], 1))
                changed = bits(after) != bits(before)
                assert not changed[:, SIZE * HEADS * (DIM + 8) :].any()
                assert not changed[:, : stride[0] - 16].unflatten(1, (-1, DIM + 8))[..., DIM:].any()


def test_of_two_tokens_in_one_slot_the_last_one_stays() -> None:
    key, cache = draw(2, HEADS, DIM, dtype=torch.float32), pool_of("NHD", torch.float32)
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_given_scales_of_heads_divide_their_heads(batch: Batch, layout: str) -> None:
    key, value = (draw(len(batch.slots), HEADS, DIM, dtype=torch.bfloat16) for _ in range(2))
    scales = torch.tensor([0.5, 1.7, 3.0]), torch.tensor([1.0, 0.3, 2.0])
    shape = (PAGES, SIZE, HEADS, DIM) if layout == "NHD" else (PAGES, HEADS, SIZE, DIM)
    k_cache, v_cache = (torch.zeros(shape).to(E4M3) for _ in range(2))
    write_ops.reshape_and_cache_flash(
        key, value, k_cache, v_cache, batch.slots, "fp8", scales[0], scales[1], kv_layout=layout
    )
    for tokens, scale, cache in zip((key, value), scales, (k_cache, v_cache), strict=True):
        in_order = (cache if layout == "NHD" else cache.transpose(1, 2)).float().flatten(0, 1)
        assert in_order[batch.slots].equal((tokens.float() / scale.view(-1, 1)).to(E4M3).float())
        assert in_order.count_nonzero() == in_order[batch.slots].count_nonzero()


def test_the_scale_of_each_head_of_a_token_is_computed_and_stored(batch: Batch) -> None:
    key, value = (draw(len(batch.slots), HEADS, DIM, dtype=torch.bfloat16) for _ in range(2))
    key[2, 1] = 0
    slots = batch.slots.clone()
    slots[1] = -1
    caches = [torch.zeros(PAGES, SIZE, HEADS, DIM).to(E4M3) for _ in range(2)]
    # Scales behind the elements of a row, as vLLM has them.
    scales = [torch.full((PAGES, SIZE, HEADS, DIM // 4 + 1), torch.nan)[..., -1] for _ in range(2)]
    write_ops.reshape_and_cache_per_token_head(key, value, caches[0], caches[1], scales[0], scales[1], slots)
    kept = slots >= 0
    for tokens, cache, scale in zip((key, value), caches, scales, strict=True):
        due = (tokens[kept].float().abs().amax(-1) / 448).clamp(min=1e-6)
        assert scale.flatten(0, 1)[slots[kept]].equal(due)
        assert scale.isnan().sum() == scale.numel() - due.numel()
        elements = cache.float().flatten(0, 1)[slots[kept]]
        assert elements.equal((tokens[kept].float() / due.unsqueeze(-1)).to(E4M3).float())
    assert caches[0].float().flatten(0, 1)[slots[2], 1].count_nonzero() == 0


def test_scales_of_another_form_are_rejected_by_name(batch: Batch) -> None:
    key = draw(len(batch.slots), HEADS, DIM, dtype=torch.bfloat16)
    cache = torch.zeros(PAGES, SIZE, HEADS, DIM).to(E4M3)
    ones = torch.ones(HEADS)
    with pytest.raises(ValueError, match="k_scale must be float32"):
        write_ops.reshape_and_cache_flash(key, key, cache, cache, batch.slots, "fp8", ones.double(), ones)
    with pytest.raises(ValueError, match="v_scale must have a scale for each of 3 heads"):
        write_ops.reshape_and_cache_flash(key, key, cache, cache, batch.slots, "fp8", ones, ones[:2])
    with pytest.raises(ValueError, match="k_scale_cache must have 3 axes"):
        write_ops.reshape_and_cache_per_token_head(key, key, cache, cache, ones, ones, batch.slots)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_nvfp4_append_stores_numbers_and_scales_of_blocks(batch: Batch, layout: str) -> None:
    dim, scale = 32, 0.5
    key = draw(len(batch.slots), HEADS, dim, dtype=torch.bfloat16)
    key[1, 0, :16], key[2, 2, 16:] = 0, 1e5
    shape = (PAGES, SIZE, HEADS) if layout == "NHD" else (PAGES, HEADS, SIZE)
    k_cache, v_cache = (torch.zeros(*shape, dim // 2, dtype=torch.uint8) for _ in range(2))
    k_scales, v_scales = (torch.zeros(*shape, dim // 16).to(E4M3) for _ in range(2))
    write_ops.nvfp4_quantize_append_paged_kv_cache(
        key,
        key,
        batch.requests.int(),
        batch.positions.int(),
        (k_cache, v_cache),
        (k_scales, v_scales),
        IDS,
        INDPTR,
        torch.ones(3, dtype=torch.int32),
        scale,
        scale,
        layout,
    )
    blocks = nvfp4.block_scales(key.float() / scale)
    assert k_cache.equal(v_cache)
    in_order = [each if layout == "NHD" else each.transpose(1, 2) for each in (k_cache, k_scales)]
    data, scales = (each.flatten(0, 1)[batch.slots] for each in in_order)
    assert scales.float().equal(blocks.float())
    assert nvfp4.dequantised(data, scales).equal(
        nvfp4.dequantised(nvfp4.quantised(key.float() / scale, blocks), blocks)
    )
    assert scales.float().max() == 448


@pytest.mark.parametrize(
    ("copy", "arguments"),
    [
        (transform_ops.copy_blocks, (torch.tensor([[0, 2]]),)),
        (transform_ops.move_kv_cache, (torch.tensor([4]), torch.tensor([0]))),
    ],
)
def test_copies_refuse_caches_of_packed_numbers(copy: Callable[..., None], arguments: tuple[torch.Tensor, ...]) -> None:
    with pytest.raises(ValueError, match="must not be uint8"):
        copy(torch.zeros(4, 2, 1, 8, dtype=torch.uint8), *arguments)
