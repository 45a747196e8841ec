"""Ids of the pages of a pool: those of each sequence in the case's order, of a window's pool, and of two groups."""

import random
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from attnfuzz.reference.case import Case, Mode, OtherGroup, PageOrder, Request, Tombstone
from attnfuzz.reference.shared_pools import case_of_other_group, pages_left

DUMMY_PAGE = 0
"""The page of padded rows, like slot 0 in SGLang's pools: finite, and owned by no request."""

Pages = dict[int, list[int]]
"""Page ids of each sequence, in the order of its keys."""


@dataclass(frozen=True)
class PageIds:
    """The ids of a case's pages.

    `full` are those in the pool of layers without a window, and `own` those in the case's pool. They are the same,
    unless the layer has a window and a separate pool, where a page may belong to several slots one after another.
    `other` are the pages of the other group of layers that shares the pool. `end` is the first id that no slot has.
    """

    full: Pages
    own: Pages
    other: Pages
    end: int

    @classmethod
    def of(cls, case: Case) -> Self:
        """Return the ids of every page of a case."""
        full = assign_pages(case, page_counts(case))
        own = full if case.pages.tombstone is Tombstone.NONE else _assign_window_pages(case, full)
        other: Pages = {}
        if case.pages.other_group is not OtherGroup.NONE:
            beside = case_of_other_group(case)
            own, other = _interleaved(own, assign_pages(beside, page_counts(beside)), 1 + case.pages.hole)
        last = max((page for pages in (*own.values(), *other.values()) for page in pages), default=case.pages.hole)
        return cls(full, own, other, 1 + max(last, case.pages.hole))


def page_counts(case: Case) -> dict[int, int]:
    """Return the number of pages that hold all keys of each sequence."""
    return {slot: -(-length // case.geometry.page_size) for slot, length in case.slot_lengths().items()}


def _interleaved(own: Pages, other: Pages, first: int) -> tuple[Pages, Pages]:
    """Return ids from `first` on that alternate between two groups while both have pages, in the order of each."""
    most = [len({page for pages in each.values() for page in pages if page != DUMMY_PAGE}) for each in (own, other)]

    def moved(pages: Pages, others: int, lead: int) -> Pages:
        return {
            slot: [page and page + min(page - first + lead, others) for page in listed]
            for slot, listed in pages.items()
        }

    return moved(own, most[1], 0), moved(other, most[0], 1)


def assign_pages(case: Case, counts: dict[int, int]) -> Pages:
    """Return page ids of each sequence in a pool without a window, in the case's order, after dummy page and hole."""
    order = case.pages.order
    if order is PageOrder.SHARED_PREFIX:
        return _share_pages(case, counts)
    if order is PageOrder.REUSED:
        return _reuse_pages(case, counts)
    owners = [slot for slot, count in counts.items() for _ in range(count)]
    if order is PageOrder.INTERLEAVED:
        turn = [(index, slot) for slot, count in counts.items() for index in range(count)]
        owners = [slot for _, slot in sorted(turn)]
    first = 1 + case.pages.hole
    ids = list(range(first, first + len(owners)))
    if order is PageOrder.REVERSED:
        ids.reverse()
    if order is PageOrder.SHUFFLED:
        random.Random(case.seed).shuffle(ids)
    pages: Pages = {slot: [] for slot in counts}
    for owner, page in zip(owners, ids, strict=True):
        pages[owner].append(page)
    return pages


def _share_pages(case: Case, counts: dict[int, int]) -> Pages:
    """Let sequences share the full pages of the first one, for up to half of their own pages."""
    settled = _settled(case)
    pages: Pages = {}
    shared: list[int] = []
    following = 1 + case.pages.hole
    for slot, count in counts.items():
        full = settled[slot] // case.geometry.page_size
        common = shared[: min(full, (count + 1) // 2)]
        own = list(range(following, following + count - len(common)))
        following += len(own)
        pages[slot] = common + own
        if not shared:
            shared = pages[slot][:full]
    return pages


def _settled(case: Case) -> dict[int, int]:
    """Return how many of the first tokens of each sequence are not overwritten by drafts.

    A draft model writes other tokens to the places of rejected drafts, and then its own drafts. Servers only share full
    pages without drafts (vLLM 0.33.0: v1/core/kv_cache_manager.py:617).
    """
    settled = case.slot_lengths()
    if any(step.mode is Mode.DRAFT_DECODE for step in case.steps):
        for step in case.steps:
            for request in step.requests if step.mode.speculative else ():
                settled[request.slot] = min(settled[request.slot], request.kv_len - request.q_len)
    return settled


def _reuse_pages(case: Case, counts: dict[int, int]) -> Pages:
    """Give each sequence pages at its first step, last freed first, and free them after its last step."""
    steps = [sorted(request.slot for request in step.requests) for step in case.steps]
    last = {slot: index for index, slots in enumerate(steps) for slot in slots}
    pages: Pages = {}
    free: list[int] = []
    unused = 1 + case.pages.hole
    for index, slots in enumerate(steps):
        for slot in slots:
            if slot not in pages:
                again = [free.pop() for _ in range(min(len(free), counts[slot]))]
                fresh = range(unused, unused + counts[slot] - len(again))
                unused = fresh.stop
                pages[slot] = [*again, *fresh]
        for slot in slots:
            if last[slot] == index:
                free += pages[slot]
    return {slot: pages[slot] for slot in counts}


@dataclass(frozen=True)
class _Life:
    """The first and the last step that keep a page of the full pool in that of the window."""

    first: int
    last: int


def _assign_window_pages(case: Case, full: Pages) -> Pages:
    """Give an id to each page that is in the window of some step, from its first such step to its last.

    Those that were freed last are reused first. Pages that are in no window have the dummy page's id.
    """
    shared = case.pages.order is PageOrder.SHARED_PREFIX
    lives: dict[tuple[int, int], _Life] = {}

    def key(slot: int, index: int) -> tuple[int, int]:
        # Pages of a shared prefix are one page for all of its requests.
        return (-1, full[slot][index]) if shared else (slot, index)

    for number, step in enumerate(case.steps):
        for request in step.requests:
            for index in _kept(case, request):
                place = key(request.slot, index)
                lives[place] = _Life(lives[place].first if place in lives else number, number)
    ids = _in_order(case, _by_lives(lives))
    return {
        slot: [ids.get(key(slot, index), DUMMY_PAGE) for index in range(len(pages))] for slot, pages in full.items()
    }


def _kept(case: Case, request: Request) -> Iterator[int]:
    """Yield the pages of a request that are in a window before or after the step's new tokens are written."""
    before = request.kv_len - request.q_len
    end = -(-request.kv_len // case.geometry.page_size)
    left = pages_left(case, request.q_len, request.kv_len)
    if case.pages.window_tail:
        yield from range(pages_left(case, 0, before), min(left, -(-before // case.geometry.page_size)))
    yield from range(left, end)


def _by_lives(lives: Mapping[tuple[int, int], _Life]) -> dict[tuple[int, int], int]:
    """Return numbers from 0 on. Pages that live at the same time have different ones."""
    given: dict[tuple[int, int], int] = {}
    ended = deque(sorted(lives, key=lambda place: (lives[place].last, place)))
    free: list[int] = []
    unused = 0
    for place in sorted(lives, key=lambda place: (lives[place].first, place)):
        while lives[ended[0]].last < lives[place].first:
            free.append(given[ended.popleft()])
        if free:
            given[place] = free.pop()
        else:
            given[place], unused = unused, unused + 1
    return given


def _in_order(case: Case, numbers: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """Return ids after the dummy page and the hole for numbers from 0 on, in the case's order."""
    first = 1 + case.pages.hole
    ids = list(range(first, first + len(set(numbers.values()))))
    if case.pages.order is PageOrder.REVERSED:
        ids.reverse()
    if case.pages.order is PageOrder.SHUFFLED:
        random.Random(case.seed).shuffle(ids)
    return {place: ids[number] for place, number in numbers.items()}
