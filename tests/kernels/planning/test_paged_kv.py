"""The KV cache of a server: who owns which page, and what the pool holds before a step."""

from collections.abc import Callable, Iterable
from itertools import product

import msgspec
import pytest
import torch
from small_cases import HEADS, LATENTS, step

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.page_ids import DUMMY_PAGE, assign_pages
from attnfuzz.kernels.planning.paged_kv import ListedKv, PagedKv
from attnfuzz.reference.case import (
    Case,
    Granularity,
    KvView,
    Mode,
    PageOrder,
    Pages,
    Request,
    Scales,
    Step,
    Unused,
    Views,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, KvLayout

BenchOf = Callable[..., Bench]
LENGTHS = (9, 4, 0, 17, 12)


def decode(*kv_lens: int) -> Step:
    return step(Mode.DECODE, *((1, kv_len) for kv_len in kv_lens))


def case_of(*steps: Step, geometry: Geometry = HEADS, order: PageOrder = PageOrder.IDENTITY, **fields: object) -> Case:
    made = Case(backend="trtllm_mha", geometry=geometry, steps=steps, pages=Pages(order=order, spare=2), seed=3)
    return msgspec.structs.replace(made, **fields)


def pages_of(case: Case) -> dict[int, list[int]]:
    counts = {slot: -(-length // case.geometry.page_size) for slot, length in case.slot_lengths().items()}
    return assign_pages(case, counts)


def token_order(kv: PagedKv, case: Case) -> list[torch.Tensor]:
    """K and V (or latents) as numbers [pages, slots, heads, dim]."""
    pools: tuple[torch.Tensor, ...] = kv.cache if isinstance(kv.cache, tuple) else (kv.cache,)
    if case.views.kv is KvView.PAIRED:
        pools = pools[0].unbind(1)
    return [pool.transpose(1, 2) if case.geometry.kv_layout is KvLayout.HND else pool for pool in pools]


def finite_slots(kv: PagedKv, case: Case) -> set[tuple[int, int]]:
    """(page, slot) whose tokens are finite, in each of the pools; others must be NaN throughout."""
    found = []
    for pool in token_order(kv, case):
        nan = pool.float().isnan().flatten(2)
        assert bool((nan.all(2) | ~nan.any(2)).all())
        found.append({(page, slot) for page, slot in (~nan.any(2)).nonzero().tolist()})
    assert all(slots == found[0] for slots in found)
    return found[0]


def places(pages: list[int], positions: Iterable[int], page_size: int = 4) -> set[tuple[int, int]]:
    return {(pages[position // page_size], position % page_size) for position in positions}


def test_pages_of_slots_follow_the_hole() -> None:
    for order in PageOrder:
        case = case_of(decode(*LENGTHS), order=order)
        case = msgspec.structs.replace(case, pages=msgspec.structs.replace(case.pages, hole=1000))
        owned = [page for pages in pages_of(case).values() for page in pages]
        assert min(owned) == 1001


DUMMY = {(DUMMY_PAGE, slot) for slot in range(4)}


@pytest.mark.parametrize("order", PageOrder)
def test_every_slot_has_the_pages_that_it_needs_and_none_the_dummy_page(order: PageOrder) -> None:
    pages = pages_of(case_of(decode(*LENGTHS), order=order))
    assert [len(pages[slot]) for slot in range(len(LENGTHS))] == [3, 1, 0, 5, 3]
    used = {page for own in pages.values() for page in own}
    assert used == set(range(1, len(used) + 1))
    assert all(len(set(own)) == len(own) for own in pages.values())


@pytest.mark.parametrize("order", [PageOrder.IDENTITY, PageOrder.SHUFFLED, PageOrder.INTERLEAVED])
def test_no_page_has_two_owners(order: PageOrder) -> None:
    pages = pages_of(case_of(decode(*LENGTHS), order=order))
    owned = [page for own in pages.values() for page in own]
    assert len(set(owned)) == len(owned) == 12


def test_page_orders_match_their_names() -> None:
    assert pages_of(case_of(decode(9, 5), order=PageOrder.IDENTITY)) == {0: [1, 2, 3], 1: [4, 5]}
    assert pages_of(case_of(decode(9, 5), order=PageOrder.INTERLEAVED)) == {0: [1, 3, 5], 1: [2, 4]}
    shuffled = pages_of(case_of(decode(40, 40), order=PageOrder.SHUFFLED))
    assert shuffled[0] != sorted(shuffled[0])
    assert pages_of(case_of(decode(16, 17, 3, 8), order=PageOrder.SHARED_PREFIX)) == {
        0: [1, 2, 3, 4],
        1: [1, 2, 3, 5, 6],
        2: [7],
        3: [1, 8],
    }


def test_no_page_is_shared_that_a_draft_model_may_write_other_tokens_to() -> None:
    verify = step(Mode.TARGET_VERIFY, (3, 16), (3, 23), stride=3)
    drafted = step(Mode.DRAFT_DECODE, (1, 15), (1, 22), stride=1)
    shared = case_of(verify, order=PageOrder.SHARED_PREFIX)
    assert pages_of(shared) == {0: [1, 2, 3, 4], 1: [1, 2, 3, 5, 6, 7]}
    later = step(Mode.TARGET_VERIFY, (3, 11), stride=3)
    for steps, common in (((verify, drafted), [1, 2, 3]), ((verify, later, drafted), [1, 2])):
        pages = pages_of(case_of(*steps, order=PageOrder.SHARED_PREFIX))
        assert [page for page in pages[0] if page in pages[1]] == common


def test_shared_pages_hold_the_same_tokens_for_all_slots(bench_of: BenchOf) -> None:
    for geometry in (HEADS, LATENTS):
        case = case_of(decode(16, 17, 3, 8), geometry=geometry, order=PageOrder.SHARED_PREFIX)
        kv = PagedKv(case, bench_of(case))
        for tokens in (kv.tokens.keys, kv.tokens.values):
            assert torch.equal(tokens(1, 12), tokens(0, 12))
            assert torch.equal(tokens(3, 4), tokens(0, 4))
            assert not torch.equal(tokens(1, 16)[12:], tokens(0, 16)[12:])


@pytest.mark.parametrize(
    ("layout", "view", "kv_dtype"),
    list(product(KvLayout, KvView, (DType.FLOAT32, DType.FLOAT8_E4M3))),
)
def test_the_pool_holds_the_tokens_below_each_length_and_nan_elsewhere(
    bench_of: BenchOf, layout: KvLayout, view: KvView, kv_dtype: DType
) -> None:
    geometry = msgspec.structs.replace(HEADS, kv_layout=layout, kv_dtype=kv_dtype)
    steps = decode(9, 4, 0, 17), decode(2, 8, 1, 0)
    case = case_of(*steps, geometry=geometry, order=PageOrder.SHUFFLED, views=Views(kv=view))
    kv = PagedKv(case, bench_of(case))
    for each in steps:
        kv.write(each)
        expected = set(DUMMY)
        for request in each.requests:
            own = places(kv.pages[request.slot], range(request.kv_len))
            expected |= own
            for pool, tokens in zip(token_order(kv, case), (kv.tokens.keys, kv.tokens.values), strict=True):
                for position, token in enumerate(tokens(request.slot, request.kv_len).float()):
                    page, slot = kv.pages[request.slot][position // 4], position % 4
                    assert torch.equal(pool[page, slot].float(), token)
        assert finite_slots(kv, case) == expected


def test_strides_are_those_of_the_view(bench_of: BenchOf) -> None:
    def strides(view: KvView, layout: KvLayout) -> list[tuple[int, ...]]:
        geometry = msgspec.structs.replace(HEADS, kv_layout=layout)
        case = case_of(decode(9), geometry=geometry, views=Views(kv=view))
        cache = PagedKv(case, bench_of(case)).cache
        return [pool.stride() for pool in (cache if isinstance(cache, tuple) else (cache,))]

    assert strides(KvView.SEPARATE, KvLayout.HND) == [(128, 64, 16, 1)] * 2
    assert strides(KvView.SEPARATE, KvLayout.NHD) == [(128, 32, 16, 1)] * 2
    assert strides(KvView.TOKEN_MAJOR, KvLayout.HND) == [(128, 16, 32, 1)] * 2
    assert strides(KvView.PAIRED, KvLayout.HND) == [(256, 128, 64, 16, 1)]


def test_spare_pages_belong_to_no_request(bench_of: BenchOf) -> None:
    case = case_of(decode(9))
    kv = PagedKv(case, bench_of(case))
    assert (kv.poison_page, kv.total_pages) == (4, 6)
    kv.write(case.steps[0])
    assert not any(page >= kv.poison_page for page, _ in finite_slots(kv, case))


def test_slots_behind_the_last_key_and_free_pages_hold_numbers_where_the_case_asks(bench_of: BenchOf) -> None:
    steps = decode(9, 4, 0, 17), decode(2, 8, 1, 0)
    for behind, free in product(Unused, Unused):
        case = case_of(*steps)
        case = msgspec.structs.replace(case, pages=Pages(spare=2, hole=3, behind=behind, free=free))
        kv = PagedKv(case, bench_of(case))
        for each in steps:
            kv.write(each)
            used = {request.slot for request in each.requests}
            expected = set(DUMMY)
            for request in each.requests:
                end = len(kv.pages[request.slot]) * 4 if behind is Unused.NUMBERS else request.kv_len
                expected |= places(kv.pages[request.slot], range(end))
            if free is Unused.NUMBERS:
                owned = {page for slot in used for page in kv.pages[slot]}
                expected |= set(product(set(range(4, kv.total_pages)) - owned, range(4)))
            assert {(page, slot) for page, slot in finite_slots(kv, case) if not 1 <= page <= 3} == expected


def test_the_dummy_page_is_a_free_page_where_no_list_names_it(bench_of: BenchOf) -> None:
    padded = step(Mode.DECODE, (1, 9), rows=2)
    case = case_of(decode(9), padded)
    kv = ListedKv(case, bench_of(case))
    own = places(kv.pages[0], range(9))
    for each, dummy in zip(case.steps, (set(), DUMMY), strict=True):
        kv.write(each)
        assert finite_slots(kv, case) == own | dummy


def test_rejected_drafts_are_finite_up_to_the_end_of_the_last_page(bench_of: BenchOf) -> None:
    extend = step(Mode.DRAFT_EXTEND, (1, 5), (3, 5), (4, 6), (1, 8), stride=4)
    case = case_of(extend, decode(5, 5, 6, 12), geometry=LATENTS)
    kv = PagedKv(case, bench_of(case))
    kv.write(extend, rejected_drafts=True)
    reached = [range(8), range(6), range(6), range(8)]
    expected = DUMMY.union(*(places(kv.pages[slot], positions) for slot, positions in enumerate(reached)))
    assert finite_slots(kv, case) == expected


def test_rejected_drafts_leave_tokens_that_another_slot_shares(bench_of: BenchOf) -> None:
    extend = step(Mode.DRAFT_EXTEND, (1, 8), (1, 5), stride=4)
    case = case_of(extend, decode(8, 12), geometry=LATENTS, order=PageOrder.SHARED_PREFIX)
    kv = PagedKv(case, bench_of(case))
    assert kv.pages[0][:2] == kv.pages[1][:2]
    kv.write(extend, rejected_drafts=True)
    (pool,) = token_order(kv, case)
    for position, token in enumerate(kv.tokens.keys(0, 8)):
        assert torch.equal(pool[kv.pages[0][position // 4], position % 4], token)


@pytest.mark.parametrize(("layout", "view"), list(product(KvLayout, KvView)))
def test_scales_of_tokens_lie_beside_the_cache_in_its_layout(bench_of: BenchOf, layout: KvLayout, view: KvView) -> None:
    geometry = msgspec.structs.replace(HEADS, kv_dtype=DType.FLOAT8_E4M3, kv_layout=layout)
    scaled = Scales(granularity=Granularity.TOKEN_HEAD)
    case = case_of(decode(*LENGTHS), geometry=geometry, views=Views(kv=view), scales=scaled)
    kv = PagedKv(case, bench_of(case))
    kv.write(case.steps[0])
    assert kv.scales is not None
    for scales, pool, tokens in zip(
        kv.scales, token_order(kv, case), (kv.tokens.key_scale, kv.tokens.value_scale), strict=True
    ):
        assert tokens is not None
        in_order = scales.transpose(1, 2) if layout is KvLayout.HND else scales
        assert in_order.isnan().equal(pool.float().isnan().any(-1))
        last = LENGTHS[0] - 1
        page = kv.pages[0][last // kv.page_size]
        assert in_order[page, last % kv.page_size].equal(tokens[kv.tokens.spans[0][last], :, 0])


def test_scales_of_heads_are_one_row(bench_of: BenchOf) -> None:
    geometry = msgspec.structs.replace(HEADS, kv_dtype=DType.FLOAT8_E4M3)
    case = case_of(decode(3), geometry=geometry, scales=Scales(k=0.5, granularity=Granularity.HEAD))
    kv = PagedKv(case, bench_of(case))
    assert kv.scales is not None
    assert kv.tokens.key_scale is not None
    assert kv.scales[0].equal(kv.tokens.key_scale[0, :, 0])
    assert len(kv.resident()) == 2


def test_pages_of_requests_that_have_left_are_reused_last_freed_first() -> None:
    def step(*requests: tuple[int, int]) -> Step:
        return Step(
            mode=Mode.DECODE,
            requests=tuple(Request(slot, 1, kv_len) for slot, kv_len in requests),
            padded_tokens=len(requests),
            tokens_per_request=1,
        )

    case = case_of(step((0, 9), (1, 5)), step((1, 6)), step((2, 13)), order=PageOrder.REUSED)
    assert pages_of(case) == {0: [1, 2, 3], 1: [4, 5], 2: [5, 4, 3, 2]}
