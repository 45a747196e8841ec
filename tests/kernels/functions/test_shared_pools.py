"""Pools of layers with a window, whose pages are freed as they leave it, and pools of two groups of layers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from small_cases import HEADS, step

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.search.examples import run_examples
from attnfuzz.kernels.cache_writes.new_tokens import NewTokens, WriteMetadata
from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.page_ids import DUMMY_PAGE, PageIds
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.plan import PageTable, Row, table_rows
from attnfuzz.reference.case import Case, Mode, OtherGroup, PaddedSlot, PageOrder, Pages, Tombstone
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.strategies.cases import cases

BenchOf = Callable[..., Bench]
ORDERS = pytest.mark.parametrize("order", PageOrder)
GROUPS = pytest.mark.parametrize("group", tuple(OtherGroup)[1:])
# Pages of 4 tokens; before a query at position n, those up to n - 3 are seen.
WINDOW = replace(HEADS, page_size=4, window_left=3)
GROWING = (step(Mode.DECODE, (1, 9), (1, 4)), step(Mode.DECODE, (1, 13), (1, 8)), step(Mode.EXTEND, (6, 19), (1, 9)))


def case_of(*steps: Any, order: PageOrder = PageOrder.IDENTITY, **fields: Any) -> Case:
    pages = replace(Pages(order=order, tombstone=Tombstone.NULL), **fields)
    return Case(backend="trtllm_mha", geometry=WINDOW, steps=steps or GROWING, pages=pages, seed=3)


@ORDERS
def test_pages_in_a_window_at_the_same_time_differ_and_a_pool_of_windows_is_smaller(order: PageOrder) -> None:
    ids = PageIds.of(case_of(order=order))
    # 19 and 9 keys, of which two pages each are in a window, three in the last step.
    for live in ([(0, 1, 2), (1, 0, 1)], [(0, 2, 4), (1, 1, 2)], [(0, 2, 5), (1, 1, 3)]):
        pages = [page for slot, first, end in live for page in ids.own[slot][first:end]]
        assert DUMMY_PAGE not in pages
        assert len(set(pages)) == len(pages) or order is PageOrder.SHARED_PREFIX
    full = {page for pages in ids.full.values() for page in pages}
    if order is not PageOrder.SHARED_PREFIX:
        assert ids.end - 1 < len(full)


@pytest.mark.parametrize(
    ("tombstone", "entries"), [(Tombstone.NULL, [0, 0]), (Tombstone.MINUS_ONE, [-1, -1]), (Tombstone.STALE, None)]
)
def test_a_table_has_tombstones_for_pages_that_have_left(
    tombstone: Tombstone, entries: list[int] | None, bench_of: BenchOf
) -> None:
    case = case_of(tombstone=tombstone)
    kv = PagedKv(case, bench_of(case))
    table = table_rows(PageTable(case, kv), Row.real(case.steps[1]), 5)
    own = kv.pages[0]
    # The query at position 12 sees keys from 9 on.
    assert table[0, :4].tolist() == (own[:2] if entries is None else entries) + own[2:4]


def test_pages_that_have_left_hold_nan_or_the_keys_of_others(bench_of: BenchOf) -> None:
    case = case_of()
    kv = PagedKv(case, bench_of(case))
    kv.write(case.steps[1])
    key, _ = kv.cache
    finite = set(torch.isfinite(key.float()).flatten(1).any(1).nonzero().flatten().tolist())
    assert finite == {DUMMY_PAGE, *kv.pages[0][2:4], *kv.pages[1][1:2]}


def test_tokens_in_front_of_the_windows_tail_have_the_slots_of_padding(bench_of: BenchOf) -> None:
    case = replace(case_of(step(Mode.EXTEND, (10, 13), (2, 2), rows=13), window_tail=True))
    for padded, slot in ((PaddedSlot.NOWHERE, -1), (PaddedSlot.DUMMY, 0)):
        padded_there = replace(case, padded_slot=padded)
        kv = PagedKv(padded_there, bench_of(padded_there))
        tokens = NewTokens(padded_there, kv)
        found = WriteMetadata(padded_there, kv, tokens).of(case.steps[0])
        # Of keys 3 to 12, those from 8 on are on pages that the query at 13 sees.
        page_2, page_3, other = kv.pages[0][2], kv.pages[0][3], kv.pages[1][0]
        due = [*[slot] * 5, *(4 * page_2 + n for n in range(4)), 4 * page_3, 4 * other, 4 * other + 1, slot]
        assert found["slot_mapping"].tolist() == due
        assert [place.row for place in tokens.places(case.steps[0])] == [*range(5, 12)]


@GROUPS
@ORDERS
def test_pages_of_two_groups_alternate(order: PageOrder, group: OtherGroup) -> None:
    case = case_of(order=order, other_group=group, tombstone=Tombstone.NONE, hole=5)
    ids = PageIds.of(case)
    own, other = ({page for pages in each.values() for page in pages} for each in (ids.own, ids.other))
    assert not own & other
    assert own | other == set(range(6, ids.end))
    assert {6, 8} <= own
    assert {7, 9} <= other


@GROUPS
@pytest.mark.parametrize("layout", KvLayout)
def test_the_groups_of_a_pool_share_its_memory(group: OtherGroup, layout: KvLayout, bench_of: BenchOf) -> None:
    case = case_of(other_group=group, tombstone=Tombstone.NONE)
    case = replace(case, geometry=replace(case.geometry, kv_layout=layout))
    kv = PagedKv(case, bench_of(case))
    other = kv.other
    assert other is not None
    kv.write(case.steps[0])
    for mine, theirs in zip(kv.cache, other.cache, strict=True):
        assert mine.data_ptr() == theirs.data_ptr()
        assert [mine[0].numel(), mine.stride(0)] == [theirs[0].numel(), theirs.stride(0)]
    before = [each.clone() for each in kv.resident()]
    other.write(case.steps[1])
    changed = {
        page
        for was, held in zip(before, kv.resident(), strict=True)
        for page in (was != held).flatten(1).any(1).nonzero().flatten().tolist()
    }
    assert changed <= set(other.territory())
    # The other group has the same keys of a request, at its own geometry.
    request = case.steps[1].requests[0]
    held, _ = other.held(other.resident(), request)
    assert torch.equal(held, other.tokens.keys(request.slot, request.kv_len))


def test_without_windows_no_case_has_tombstones() -> None:
    narrowed = replace(resolve("trtllm_mha").capability, windows=False)
    found: list[Case] = []
    run_examples(cases(narrowed, "trtllm_mha"), found.append, examples=20, seed_of=1)
    assert {case.pages.tombstone for case in found} == {Tombstone.NONE}
