"""A pool is cut to the pages that lengths refer to: every id leads where it led, and pages lie as they did."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_calls import MemoryTensor

from attnfuzz.harness.dumps.contents import BufferShelf, Contents
from attnfuzz.harness.dumps.cut_pool import CutPool, PageMap, cut_pool, in_ranges
from attnfuzz.harness.memory.poison import poison
from attnfuzz.kernels.meaning import Parameter, RequestSpan, Role
from attnfuzz.reference.calls import content_of, viewed

TOTAL = 10


def span(kv_len: int, *pages: int) -> RequestSpan:
    return RequestSpan(first_row=0, q_len=1, kv_len=kv_len, pages=pages)


def mapped(table: list[list[int]], *spans: RequestSpan) -> tuple[PageMap, list[list[int]]]:
    tensor = torch.tensor(table, dtype=torch.int32)
    pages = PageMap.of(TOTAL, spans, tensor)
    new = pages.renumbered(tensor)
    assert new.dtype == torch.int32
    return pages, new.tolist()


def test_kept_pages_are_numbered_anew_in_their_order() -> None:
    pages, table = mapped([[7, 2], [2, 9]], span(8, 7, 2), span(5, 2, 9))
    assert pages.kept == (2, 7, 9)
    assert pages.pages == 3
    assert table == [[1, 0], [0, 2]]


def test_an_unused_page_becomes_the_spare_one() -> None:
    pages, table = mapped([[7, 3, 4], [2, 2, 7]], span(4, 7), span(8, 2, 2))
    assert pages.kept == (2, 7)
    assert pages.spare
    assert table == [[1, 2, 2], [0, 0, 1]]


def test_ids_outside_of_the_pool_stay_as_far_outside() -> None:
    pages, table = mapped([[7, TOTAL], [-1, TOTAL + 5]], span(8, 7, TOTAL), span(8, -1, TOTAL + 5))
    assert pages.kept == (7,)
    assert not pages.spare
    assert table == [[0, 1], [-1, 6]]


def test_an_unused_pool_keeps_one_readable_page() -> None:
    pages, table = mapped([[0], [-1]], span(0), span(0))
    assert (pages.kept, pages.pages) == ((), 1)
    assert table == [[0], [-1]]
    assert PageMap.of(TOTAL, [], torch.zeros(0, 4, dtype=torch.int32)).pages == 1


def test_slots_past_the_last_token_of_a_page_are_not_covered() -> None:
    pages, _ = mapped([[7, 2], [2, 9]], span(6, 7, 2), span(3, 2))
    covered = pages.covered([span(3, 2), span(6, 7, 2)], 4)
    # Page 2 is shared, and covered as far as the longer of both reaches; page 9 is the spare one.
    assert covered.tolist() == [[True] * 3 + [False], [True] * 4, [False] * 4]


@settings(database=None, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.integers(-3, TOTAL + 3), min_size=4, max_size=4), min_size=1, max_size=5),
    st.lists(st.integers(0, 4), min_size=5, max_size=5),
)
def test_pages_are_the_same_after_renumbering_if_and_only_if_they_were_before(
    table: list[list[int]], needed: list[int]
) -> None:
    spans = [span(4 * n, *row[:n]) for row, n in zip(table, needed, strict=False)]
    pages, new = mapped(table, *spans)
    for old_row, new_row in zip(table, new, strict=True):
        for old, renumbered in zip(old_row, new_row, strict=True):
            if old in pages.kept:
                assert pages.kept[renumbered] == old
            elif 0 <= old < TOTAL:
                assert renumbered == len(pages.kept)
            else:
                assert renumbered - (0 if old < 0 else pages.pages) == old - (0 if old < 0 else TOTAL)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([], ""),
        ([4], "4"),
        ([1, 2, 3, 7, 9, 10], "1 to 3, 7, 9 to 10"),
        (list(range(0, 60, 2)), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 18 more"),
    ],
)
def test_numbers_are_reported_in_ranges(numbers: list[int], words: str) -> None:
    assert in_ranges(numbers) == words


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
    view = pool.parts[part]
    (buffer,) = (each for each in shelf.buffers() if each.name == view.buffer)
    content = content_of(buffer)
    assert content is not None
    return viewed(content.view(torch.int32), view).contiguous().view(torch.float32)


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
    assert pool.notes == ("The pages of kv_cache were 960 elements apart; they are adjacent now.",)
    assert holds_what_is_kept(shown(pool, shelf), many)


def test_pages_that_lie_within_each_other_are_made_dense() -> None:
    heads_outside = numbers(2, 6, 3, 4).transpose(0, 1)
    pool, shelf = cut(heads_outside)
    assert pool.parts[0].stride == (24, 12, 4, 1)
    assert "which the smaller pool does not keep" in pool.notes[0]
    assert holds_what_is_kept(shown(pool, shelf), heads_outside)


def test_the_spare_page_of_a_drawn_pool_is_poisoned_before_the_call() -> None:
    pool, _ = cut(numbers(6, 2, 3, 4), contents=Contents.SEED)
    (write,) = pool.writes
    assert (write.name, write.offset, write.size) == ("kv_cache", 48, 24)
    content = content_of(write)
    assert content is not None
    assert bytes(content.view(torch.uint8).tolist()) == poison(torch.float32).content(96)
