"""The indices that the writing ops trust, each seen to have its effect (TRAPS.md)."""

from typing import Any

import pytest
import torch
from entry_point_calls import int32

from attnfuzz.kernels.cache_writes import interfaces
from attnfuzz.kernels.native import write_ops

SIGSEGV, WRITE, READ = 11, 2, 1
HEADS, DIM, SIZE = 2, 8, 4


def caches(memory: Any) -> tuple[torch.Tensor, torch.Tensor]:
    empty = torch.zeros(3, SIZE, HEADS, DIM)
    return memory.copy(empty), memory.copy(empty)


def store(
    key: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor, reserved: int = 0
) -> None:
    """Write the tokens as keys and as values."""
    interfaces.store_cache(
        key=key,
        value=key,
        k_cache=k_cache,
        v_cache=v_cache,
        slot_mapping=slots,
        k_scale=1.0,
        v_scale=1.0,
        kv_layout="NHD",
        reserved_skip_index=reserved,
    )


def append_arguments(memory: Any, **changes: Any) -> dict[str, Any]:
    """Two tokens of two requests with a page each."""
    right = {
        "key": torch.ones(2, HEADS, DIM),
        "value": torch.ones(2, HEADS, DIM),
        "batch_indices": int32(0, 1),
        "positions": int32(1, 2),
        "kv_indices": int32(2, 1),
        "kv_indptr": int32(0, 1, 2),
        "kv_last_page_len": int32(2, 3),
    }
    placed = {name: memory.copy(value) for name, value in (right | changes).items()}
    return placed | dict(zip(("k_cache", "v_cache"), caches(memory), strict=True)) | {"kv_layout": "NHD"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "place"), [({"batch_indices": int32(0, -1)}, "kv_indptr"), ({"positions": int32(1, -1)}, None)]
)
def test_append_follows_negative_requests_and_positions(guarded: Any, dying: Any, changes: Any, place: Any) -> None:
    with guarded(right=False) as memory:
        arguments = append_arguments(memory, **changes)
        arguments["kv_indptr"] = memory.copy(int32(0, 0, 1))
        death = dying(lambda: interfaces.append(**arguments))
        assert (death.signal, death.access) == (SIGSEGV, READ)
        assert place is None or death.address == arguments[place].data_ptr() - 4


@pytest.mark.slow
def test_every_page_id_of_an_append_is_followed(guarded: Any, dying: Any) -> None:
    with guarded(right=False) as memory:
        arguments = append_arguments(memory, kv_indices=int32(-1, 1), positions=int32(0, 2))
        death = dying(lambda: interfaces.append(**arguments))
        assert (death.signal, death.access) == (SIGSEGV, WRITE)
        assert death.address == arguments["k_cache"].data_ptr() - SIZE * HEADS * DIM * 4


def test_append_takes_a_position_past_a_request_for_the_next_requests(guarded: Any) -> None:
    with guarded(right=True) as memory:
        arguments = append_arguments(memory, positions=int32(SIZE, 2))
        interfaces.append(**arguments)
        assert arguments["k_cache"].flatten(2).sum(-1).nonzero().tolist() == [[1, 0], [1, 2]]


def test_append_ignores_the_lengths_of_last_pages(guarded: Any) -> None:
    with guarded(right=True) as memory:
        arguments = append_arguments(memory, kv_last_page_len=int32(-7, 99))
        interfaces.append(**arguments)
        assert arguments["k_cache"].flatten(2).sum(-1).nonzero().tolist() == [[1, 2], [2, 1]]


@pytest.mark.slow
def test_reshape_and_cache_reads_as_many_tokens_as_there_are_slots(guarded: Any, dying: Any) -> None:
    with guarded(right=True) as memory:
        key = memory.copy(torch.ones(2, HEADS, DIM))
        slots = memory.copy(torch.arange(3))
        death = dying(lambda: write_ops.reshape_and_cache_flash(key, key, *caches(memory), slots))
        assert (death.signal, death.access) == (SIGSEGV, READ)
        assert death.address == key.data_ptr() + key.nbytes


def test_reshape_and_cache_leaves_tokens_without_a_slot_unread(guarded: Any) -> None:
    with guarded(right=True) as memory:
        key, (k_cache, v_cache) = memory.copy(torch.ones(3, HEADS, DIM)), caches(memory)
        write_ops.reshape_and_cache_flash(key, key, k_cache, v_cache, memory.copy(torch.tensor([5])))
        assert k_cache.flatten(2).sum(-1).nonzero().tolist() == [[1, 1]]


@pytest.mark.slow
@pytest.mark.parametrize(("index", "right"), [(-1, False), (3 * SIZE, True)])
def test_store_follows_any_index(guarded: Any, dying: Any, index: int, right: bool) -> None:
    with guarded(right=right) as memory:
        key, pools = torch.ones(1, HEADS, DIM), caches(memory)
        death = dying(lambda: store(key, *pools, torch.tensor([index])))
        assert (death.signal, death.access) == (SIGSEGV, WRITE)
        assert death.address == pools[0].data_ptr() + index * HEADS * DIM * 4


@pytest.mark.parametrize(("reserved", "left"), [(0, [0]), (2, [2]), (-1, [])])
def test_store_skips_the_reserved_index(reserved: int, left: list[int]) -> None:
    tokens, slots = torch.ones(4, 1, DIM), torch.tensor([0, 1, 2, 3])
    keys, values, latents = torch.zeros(3, 1, 4, 1, DIM)
    store(tokens, keys, values, slots, reserved)
    interfaces.set_mla(key=tokens, kv_cache=latents, rank=6, slot_mapping=slots, reserved_skip_index=reserved)
    for pool in (keys, values, latents):
        assert (pool.view(4, DIM) == 0).all(-1).nonzero()[:, 0].tolist() == left


@pytest.mark.slow
def test_reshape_and_cache_follows_a_slot_past_the_pool(guarded: Any, dying: Any) -> None:
    with guarded(right=True) as memory:
        key, pools = torch.ones(1, HEADS, DIM), caches(memory)
        death = dying(lambda: write_ops.reshape_and_cache_flash(key, key, *pools, torch.tensor([3 * SIZE + 1])))
        assert (death.signal, death.access) == (SIGSEGV, WRITE)
        assert death.address == pools[0].data_ptr() + (3 * SIZE + 1) * HEADS * DIM * 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"slot_mapping": int32(0, 1)}, "slot_mapping must be int64"),
        ({"key": torch.ones(2, HEADS, DIM, dtype=torch.float16)}, "the dtype of key, or float8_e4m3fn"),
        ({"key": torch.ones(2, HEADS + 1, DIM)}, "key has 3 heads of dim 8, its cache 2 of dim 8"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype is 'fp8' for torch.float32 in a cache of torch.float32"),
        ({"kv_layout": "DHN"}, "kv_layout must be HND or NHD"),
    ],
)
def test_meaningless_arguments_are_rejected_by_name(wrong: dict[str, Any], message: str) -> None:
    right = {
        "key": torch.ones(2, HEADS, DIM),
        "value": torch.ones(2, HEADS, DIM),
        "key_cache": torch.zeros(3, SIZE, HEADS, DIM),
        "value_cache": torch.zeros(3, SIZE, HEADS, DIM),
        "slot_mapping": torch.tensor([0, 1]),
    }
    with pytest.raises(ValueError, match=message):
        write_ops.reshape_and_cache_flash(**(right | wrong))
