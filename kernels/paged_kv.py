"""A server's KV cache: the pages of each slot, their contents, and the memory layout of the pool."""

import random
from array import array
from collections.abc import Sequence
from typing import ClassVar

import torch

from attnfuzz.kernels.backend import Bench
from attnfuzz.kernels.slot_tokens import SlotTokens
from attnfuzz.kernels.transfers import to_device
from attnfuzz.reference.case import Case, KvView, PageOrder, Step
from attnfuzz.reference.geometry import KvLayout


class TokenSpans:
    """Runs of tokens: each run is `counts` tokens from `tokens` on, placed in a page from a slot on.

    Stored in columns, since large pools have hundreds of thousands of runs.
    """

    def __init__(self) -> None:
        self.pages, self.slots, self.tokens, self.counts = (array("q") for _ in range(4))

    def add(self, pages: Sequence[int], first_token: int, count: int, page_size: int) -> None:
        """Add tokens that fill pages from their beginnings, the last one partially."""
        full, rest = divmod(count, page_size)
        used = full + bool(rest)
        self.pages.extend(pages[:used])
        self.slots.extend([0] * used)
        self.tokens.extend(range(first_token, first_token + count, page_size))
        self.counts.extend([page_size] * full + [rest] * bool(rest))

    def add_one(self, page: int, slot: int, token: int) -> None:
        """Add a single token."""
        for column, value in zip(
            (self.pages, self.slots, self.tokens, self.counts), (page, slot, token, 1), strict=True
        ):
            column.append(value)

    def taken(self) -> set[tuple[int, int]]:
        """(page, slot) of every token."""
        columns = zip(self.pages, self.slots, self.counts, strict=True)
        return {(page, at) for page, slot, count in columns for at in range(slot, slot + count)}

    def positions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The page and slot [2, tokens] and the index [tokens] of each token: int64."""
        columns = [torch.frombuffer(column, dtype=torch.int64) for column in (self.pages, self.slots, self.tokens)]
        counts = torch.frombuffer(self.counts, dtype=torch.int64)
        page, slot, token = (column.repeat_interleave(counts) for column in columns)
        within = torch.arange(len(page)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        return torch.stack((page, slot + within)), token + within


DUMMY_PAGE = 0
"""The page of padded rows, like slot 0 in SGLang's pools: finite, and owned by no request."""


class PagedKv:
    """A pool of KV pages, and the tokens that its slots attend to.

    `write` sets the pool's state before a step: positions below a request's kv_len hold tokens, the dummy page holds
    finite numbers, and the rest is NaN. `cache` is a kernel's argument: K and V, each [pages, kv_heads, page_size,
    head_dim] in the layout HND or [pages, page_size, kv_heads, head_dim] in NHD; or one tensor [pages, 2, ...] of
    both; with latents, keys alone [pages, 1, page_size, rank + rope], whose first `rank` elements are the values.
    `pages` are the ids of each slot's pages, in order; `poison_page` is the first spare one. Pages in the case's hole
    have no memory.
    """

    finite_tails: ClassVar[bool] = False

    def __init__(self, case: Case, bench: Bench) -> None:
        self._case = case
        self.page_size = case.geometry.page_size
        lengths = case.slot_lengths()
        self.pages = assign_pages(case, {slot: -(-length // self.page_size) for slot, length in lengths.items()})
        self._hole = range(1, 1 + case.pages.hole)
        used = 1 + max((page for pages in self.pages.values() for page in pages), default=case.pages.hole)
        self.poison_page = used
        self.total_pages = used + case.pages.spare

        self.tokens = SlotTokens.cached(case, extra=self.page_size, device=bench.device)
        self._share_prefixes()
        self._allocate(bench)

    def _share_prefixes(self) -> None:
        """Copy an earlier slot's tokens to the positions on pages shared with it."""
        if self._case.pages.order is not PageOrder.SHARED_PREFIX:
            return
        owner: dict[int, int] = {}
        for slot, pages in self.pages.items():
            for index, page in enumerate(pages):
                first = owner.setdefault(page, slot)
                if first != slot:
                    # Only full pages are shared.
                    source = self.tokens.spans[first].start + index * self.page_size
                    target = self.tokens.spans[slot].start + index * self.page_size
                    for tokens in (self.tokens.key, self.tokens.value):
                        bits = tokens.view(self._case.geometry.kv_dtype.bits)
                        bits[target : target + self.page_size] = bits[source : source + self.page_size]

    def _allocate(self, bench: Bench) -> None:
        """Allocate the pool, and keep its tensors in token order beside the tokens that fill them."""
        geometry, view = self._case.geometry, self._case.views.kv
        dtype = geometry.kv_dtype.torch_dtype
        head_major = geometry.kv_layout is KvLayout.HND
        pages, page, heads = self.total_pages, self.page_size, geometry.kv_heads
        self.cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor]
        if geometry.latent:
            self.cache = key = self._pool(bench, "kv_cache", geometry.head_dim_qk)
            sources = [(key, self.tokens.key)]
        elif view is KvView.PAIRED:
            inner = (heads, page) if head_major else (page, heads)
            self.cache = bench.memory.tensor(
                "kv_cache", (pages, 2, *inner, geometry.head_dim_qk), dtype, hole=self._hole
            )
            sources = [(self.cache[:, 0], self.tokens.key), (self.cache[:, 1], self.tokens.value)]
        else:
            self.cache = key, value = self._separate(bench)
            sources = [(key, self.tokens.key), (value, self.tokens.value)]
        bits = geometry.kv_dtype.bits
        token_axes = (0, 2, 1, 3) if head_major else (0, 1, 2, 3)
        self._pools = [(pool.view(bits).permute(token_axes), tokens.view(bits)) for pool, tokens in sources]
        self._written = False

    def _pool(self, bench: Bench, name: str, head_dim: int) -> torch.Tensor:
        """A pool of keys or of values, in the case's layout."""
        geometry = self._case.geometry
        pages, page, heads, dtype = self.total_pages, self.page_size, geometry.kv_heads, geometry.kv_dtype.torch_dtype
        head_major = geometry.kv_layout is KvLayout.HND
        if head_major and self._case.views.kv is not KvView.TOKEN_MAJOR:
            return bench.memory.tensor(name, (pages, heads, page, head_dim), dtype, hole=self._hole)
        tokens = bench.memory.tensor(name, (pages, page, heads, head_dim), dtype, hole=self._hole)
        return tokens.permute(0, 2, 1, 3) if head_major else tokens

    def _separate(self, bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
        """The pools of keys and of values for a kernel that takes both."""
        geometry = self._case.geometry
        return self._pool(bench, "k_cache", geometry.head_dim_qk), self._pool(bench, "v_cache", geometry.head_dim_vo)

    def write(self, step: Step, *, rejected_drafts: bool = False) -> None:
        """Set the state of the pool before `step`.

        With `rejected_drafts`, it still has a verify's writes for draft tokens that were not accepted: finite numbers
        past a request's end, up to the end of its last page. With `finite_tails`, these fill all pages of a slot.
        """
        spans, page = TokenSpans(), self.page_size
        spans.add([DUMMY_PAGE], self.tokens.extra.start, page, page)
        for request in step.requests:
            first = self.tokens.spans[request.slot].start
            spans.add(self.pages[request.slot], first, request.kv_len, page)
        if rejected_drafts or self.finite_tails:
            for (draft_page, slot), token in self._drafts(step, spans.taken()).items():
                spans.add_one(draft_page, slot, token)
        positions, source = spans.positions()
        at = to_device(positions, self._pools[0][0].device)
        nan = self._case.geometry.kv_dtype.nan
        for pool, values in self._pools:
            if self._written:
                pool[: self._hole.start].fill_(nan)
                pool[self._hole.stop :].fill_(nan)
            # Indexed on the device of each: a small number of tokens is drawn on the CPU.
            pool[at[0], at[1]] = to_device(values[source.to(values.device)], pool.device)
        self._written = True

    def _drafts(self, step: Step, taken: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """The (page, slot) of rejected drafts and their tokens, except where a shared page holds another's token."""
        drafts = {}
        for request in step.requests:
            page_end = -(-request.kv_len // self.page_size) * self.page_size
            drafts_end = request.kv_len - request.q_len + step.tokens_per_request
            owned_end = len(self.pages[request.slot]) * self.page_size
            end = owned_end if self.finite_tails else min(drafts_end, page_end)
            for position in range(request.kv_len, end):
                page, slot = self.pages[request.slot][position // self.page_size], position % self.page_size
                if (page, slot) not in taken:
                    drafts[page, slot] = self.tokens.extra[slot]
        return drafts


class FiniteTails(PagedKv):
    """A pool whose pages hold numbers past a request's end, like a server's pages after earlier requests."""

    finite_tails = True


def assign_pages(case: Case, counts: dict[int, int]) -> dict[int, list[int]]:
    """Page ids of each slot, after the dummy page and the hole, in the case's order."""
    order = case.pages.order
    if order is PageOrder.SHARED_PREFIX:
        return _share_pages(case, counts)
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
    pages: dict[int, list[int]] = {slot: [] for slot in counts}
    for owner, page in zip(owners, ids, strict=True):
        pages[owner].append(page)
    return pages


def _share_pages(case: Case, counts: dict[int, int]) -> dict[int, list[int]]:
    """Let slots share the full pages of the first one, for up to half of their own pages."""
    lengths = case.slot_lengths()
    pages: dict[int, list[int]] = {}
    shared: list[int] = []
    following = 1 + case.pages.hole
    for slot, count in counts.items():
        full = lengths[slot] // case.geometry.page_size
        common = shared[: min(full, (count + 1) // 2)]
        own = list(range(following, following + count - len(common)))
        following += len(own)
        pages[slot] = common + own
        if not shared:
            shared = pages[slot][:full]
    return pages
