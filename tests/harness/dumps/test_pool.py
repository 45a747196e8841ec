"""A cut pool lies in memory as the recorded one did, as far as that can be told."""

import torch
from recorded_calls import MemoryTensor

from attnfuzz.harness.dumps.contents import BufferShelf, Contents
from attnfuzz.harness.dumps.pool import CutPool, PageMap, cut_pool
from attnfuzz.harness.memory.poison import poison
from attnfuzz.kernels.entry_points import Parameter, Role
from attnfuzz.reference.calls import content_of

AXES = ("pages", "kv heads", "slots", "qk dim")
PAGES = PageMap(total=6, kept=(1, 4), spare=True)
COVERED = torch.tensor([[True, True, True], [True, False, False], [False] * 3])


def cut(*tensors: torch.Tensor, contents: Contents = Contents.VALUES) -> tuple[CutPool, BufferShelf]:
    names = ["kv_cache[0]", "kv_cache[1]"] if len(tensors) == 2 else ["kv_cache"]
    axes = ("pages", "K and V", *AXES[1:]) if tensors[0].ndim == 5 else AXES
    shelf = BufferShelf(contents, 0, "here")
    sources = [MemoryTensor.of(tensor) for tensor in tensors]
    parameters = [Parameter(name, Role.CACHE, axes) for name in names]
    return cut_pool(shelf, "", parameters, sources, PAGES, COVERED), shelf


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def shown(pool: CutPool, shelf: BufferShelf, part: int = 0) -> torch.Tensor:
    return shelf.tensor(pool.parts[part]).contiguous().view(torch.float32)


def holds_what_is_kept(found: torch.Tensor, recorded: torch.Tensor) -> bool:
    assert found[0].equal(recorded[1])
    assert found[1, :, :1].equal(recorded[4, :, :1])
    return bool(found[1, :, 1:].isnan().all() and found[2].isnan().all())


def test_the_two_halves_of_one_cache_stay_in_one_buffer() -> None:
    whole = numbers(6, 2, 2, 3, 4)
    pool, shelf = cut(whole[:, 0], whole[:, 1])
    (buffer,) = shelf.buffers()
    assert (buffer.name, buffer.size) == ("kv_cache", 3 * 2 * 2 * 3 * 4)
    assert [part.offset for part in pool.parts] == [0, 24]
    assert all(part.stride == whole[:, 0].stride() for part in pool.parts)
    assert holds_what_is_kept(shown(pool, shelf, 0), whole[:, 0])
    assert holds_what_is_kept(shown(pool, shelf, 1), whole[:, 1])


def test_pools_of_their_own_stay_apart() -> None:
    key, value = numbers(6, 2, 3, 4), numbers(6, 2, 3, 4) + 500
    pool, shelf = cut(key, value)
    assert [buffer.name for buffer in shelf.buffers()] == ["k_cache", "v_cache"]
    assert holds_what_is_kept(shown(pool, shelf, 1), value)


def test_a_cache_of_both_is_one_tensor() -> None:
    whole = numbers(6, 2, 2, 3, 4)
    pool, shelf = cut(whole)
    assert holds_what_is_kept(shown(pool, shelf)[:, 1], whole[:, 1])


def test_the_order_of_axes_in_memory_is_kept() -> None:
    tokens_first = numbers(6, 3, 2, 4).transpose(1, 2)
    pool, shelf = cut(tokens_first)
    assert pool.parts[0].stride == tokens_first.stride()
    assert holds_what_is_kept(shown(pool, shelf), tokens_first)


def test_a_small_gap_between_pages_is_kept_and_a_large_one_closed() -> None:
    layers = numbers(6, 3, 2, 3, 4)[:, 1]
    pool, shelf = cut(layers)
    assert pool.parts[0].stride == layers.stride()
    assert holds_what_is_kept(shown(pool, shelf), layers)
    many = numbers(6, 40, 2, 3, 4)[:, 1]
    pool, shelf = cut(many)
    assert pool.parts[0].stride == (24, 12, 4, 1)
    assert pool.notes == ("The pages of kv_cache lay 960 elements apart; they follow each other now.",)
    assert holds_what_is_kept(shown(pool, shelf), many)


def test_pages_that_lie_within_each_other_are_made_dense() -> None:
    heads_outside = numbers(2, 6, 3, 4).transpose(0, 1)
    pool, shelf = cut(heads_outside)
    assert pool.parts[0].stride == (24, 12, 4, 1)
    assert "of which the cut pool keeps nothing" in pool.notes[0]
    assert holds_what_is_kept(shown(pool, shelf), heads_outside)


def test_the_spare_page_of_a_drawn_pool_is_poisoned_before_the_call() -> None:
    pool, _ = cut(numbers(6, 2, 3, 4), contents=Contents.SEED)
    (write,) = pool.writes
    assert (write.name, write.offset, write.size) == ("kv_cache", 48, 24)
    content = content_of(write)
    assert content is not None
    assert bytes(content.view(torch.uint8).tolist()) == poison(torch.float32).content(96)
