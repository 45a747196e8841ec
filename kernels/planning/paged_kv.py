"""A server's KV cache: the pages of each sequence, their contents, and the memory layout of the pool."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.interface.transfers import to_device
from attnfuzz.kernels.planning.page_ids import DUMMY_PAGE, PageIds
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.reference.cache_scales import dequantised
from attnfuzz.reference.case import (
    BlockScales,
    Case,
    Granularity,
    KvView,
    OtherGroup,
    PageOrder,
    Request,
    Step,
    Tombstone,
    Unused,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.nvfp4 import INTERLEAVED, in_rows
from attnfuzz.reference.shared_pools import case_of_other_group, pages_left

Numbers = NDArray[np.int64]


class TokenSpans:
    """Runs of tokens: each run is `counts` tokens from `tokens` on, placed in a page from a slot on.

    They are stored in columns, since large pools have hundreds of thousands of runs.
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

    def add_alike(self, pages: Sequence[int], first_token: int, page_size: int) -> None:
        """Fill each of the pages with the same tokens."""
        self.pages.extend(pages)
        self.slots.extend([0] * len(pages))
        self.tokens.extend([first_token] * len(pages))
        self.counts.extend([page_size] * len(pages))

    def positions(self) -> tuple[Numbers, Numbers]:
        """Return the page and slot [2, tokens] and the index [tokens] of each token: int64."""
        columns = (self.pages, self.slots, self.tokens, self.counts)
        pages, slots, tokens, counts = (np.frombuffer(column, dtype=np.int64) for column in columns)
        ends = counts.cumsum()
        # A run's tokens are numbered from its slot on, and from its first token on.
        within = np.arange(ends[-1] if len(ends) else 0)
        places = np.stack((pages.repeat(counts), within + (slots - ends + counts).repeat(counts)))
        return places, within + (tokens - ends + counts).repeat(counts)


@dataclass(frozen=True)
class PoolBits:
    """A pool [pages, slots, heads, n], the tokens that fill it [tokens, heads, n], and its NaN, all as bits.

    `interleaved` slots share rows: `bits` is then [pages, slots / 4, 4, heads, 4, n / 4].
    """

    bits: torch.Tensor
    tokens: torch.Tensor
    nan: int
    interleaved: bool = False

    @classmethod
    def of(cls, pool: torch.Tensor, tokens: torch.Tensor) -> Self:
        """Return a pool in token order."""
        dtype = DType.of(pool.dtype)
        return cls(pool.view(dtype.bits), tokens.view(dtype.bits), dtype.nan)

    def on(self, storage: torch.Tensor) -> Self:
        """Return the same pool in another tensor that is shaped like its storage."""
        bits = storage.view(self.bits.dtype)
        return replace(self, bits=bits.as_strided(self.bits.shape, self.bits.stride(), self.bits.storage_offset()))

    def swizzled(self) -> Self:
        """Return the same memory with the scales of blocks swizzled (`attnfuzz.reference.nvfp4`)."""
        rows = self.bits.unflatten(1, (-1, INTERLEAVED)).unflatten(-1, (-1, INTERLEAVED))
        return replace(self, bits=rows.permute(0, 1, 5, 3, 2, 4), interleaved=True)

    def put(self, at: torch.Tensor, rows: torch.Tensor) -> None:
        """Write rows of bits to pages and slots `at` [2, tokens]."""
        page, slot = at
        index: tuple[torch.Tensor, ...] = (page, slot)
        if self.interleaved:
            index, rows = (page, slot // INTERLEAVED, slot % INTERLEAVED), rows.unflatten(-1, (INTERLEAVED, -1))
        if self.bits.is_cpu:
            # Takes a third of torch's time.
            self.bits.numpy()[tuple(each.numpy() for each in index)] = rows.numpy()
        else:
            self.bits[index] = rows

    def clear(self, pages: torch.Tensor) -> None:
        """Fill some pages with NaN."""
        if self.bits.is_cpu:
            self.bits.numpy()[pages.numpy()] = self.nan
        else:
            self.bits[to_device(pages, self.bits.device)] = self.nan

    def taken(self, source: torch.Tensor) -> torch.Tensor:
        """Return bits of the tokens with these indices, on the device of the pool."""
        # Indexed on the device of the tokens: a small number of tokens is drawn on the CPU.
        return to_device(self.tokens.index_select(0, source.to(self.tokens.device)), self.bits.device)

    def resident(self, hole: range) -> torch.Tensor:
        """Return the bits [pages, slots, heads, n] without the hole: a view, or a copy of interleaved ones."""
        bits = torch.cat((self.bits[: hole.start], self.bits[hole.stop :])) if hole else self.bits
        return in_rows(bits) if self.interleaved else bits

    def restore(self, resident: torch.Tensor, hole: range) -> None:
        """Set all bits to those that `resident` has returned."""
        if self.interleaved:
            resident = resident.unflatten(1, (-1, INTERLEAVED)).unflatten(-1, (INTERLEAVED, -1))
        self.bits[: hole.start].copy_(resident[: hole.start])
        self.bits[hole.stop :].copy_(resident[hole.start :])


class _Composed(NamedTuple):
    """A copy of a pool on the host: its tensors by name, and the pools in them."""

    storage: dict[str, torch.Tensor]
    pools: list[PoolBits]


_MOST_COMPOSED = 1 << 20
"""Size of a pool above which its tokens are written in place."""


class PagedKv:
    """A pool of KV pages, and the tokens to which sequences attend.

    `write` sets the pool's state before a step: positions below a request's kv_len hold tokens, the dummy page holds
    finite numbers, and the rest is NaN, or finite numbers where the case asks for them.

    `cache` is a kernel's argument: K and V, each [pages, kv_heads, page_size, head_dim] in the layout HND or [pages,
    page_size, kv_heads, head_dim] in NHD; or one tensor [pages, 2, ...] of both; with latents, keys alone [pages, 1,
    page_size, rank + rope], whose first `rank` elements are the values.

    `scales` are its tensors of scales, of K and of V, if the case has them: float32 [kv_heads], or, for each token and
    head, the shape of the cache without its last axis; or with a last axis of head_dim / 16 for blocks of NVFP4, in
    e4m3. The cache then consists of bytes, with two numbers in each.

    `pages` are the ids of each slot's pages, in order, and `full_pages` those in the pool of layers without a window;
    the first `left` of a request belong to others. `poison_page` is the first spare one. Pages in the `hole` have no
    memory. `other` is the part of another group of layers, if the case has one. `after_write` is called at the end of
    each write of the state before a step.
    """

    finite_tails: ClassVar[bool] = False

    def __init__(self, case: Case, bench: Bench) -> None:
        ids = PageIds.of(case)
        self._open(case, bench, ids.own, ids.full)
        self.hole = range(1, 1 + case.pages.hole)
        self.poison_page = ids.end
        self.total_pages = ids.end + case.pages.spare
        with bench.memory.at_once():
            self._allocate(bench)
        self.other: OtherGroupKv | None = None
        if case.pages.other_group is not OtherGroup.NONE:
            self.other = OtherGroupKv(self, ids.other, bench)

    def _open(self, case: Case, bench: Bench, pages: dict[int, list[int]], full: dict[int, list[int]]) -> None:
        """Draw the tokens of the sequences, whose pages are these."""
        self.case = self._case = case
        self.page_size = case.geometry.page_size
        self.pages, self.full_pages = pages, full
        self.tokens = SlotTokens.cached(case, extra=self.page_size, device=bench.device)
        self.share_prefixes(self.tokens)
        self.after_write: Callable[[Step], None] = lambda _: None
        self._written = False
        self._memory = bench.memory

    def left(self, request: Request) -> int:
        """Return the number of a request's first pages that have left the window, and belong to others."""
        return pages_left(self._case, request.q_len, request.kv_len)

    def share_prefixes(self, tokens: SlotTokens) -> None:
        """Copy an earlier sequence's `tokens` to the positions on pages shared with it."""
        if self._case.pages.order is not PageOrder.SHARED_PREFIX:
            return
        owner: dict[int, int] = {}
        for slot, pages in self.full_pages.items():
            for index, page in enumerate(pages):
                first = owner.setdefault(page, slot)
                if first != slot:
                    # Only full pages are shared.
                    source = tokens.spans[first].start + index * self.page_size
                    target = tokens.spans[slot].start + index * self.page_size
                    for each in tokens.parts:
                        bits = each.view(DType.of(each.dtype).bits)
                        bits[target : target + self.page_size] = bits[source : source + self.page_size]

    def _allocate(self, bench: Bench) -> None:
        """Place the pool, and keep its tensors in token order with the tokens that fill them."""
        tokens, geometry = self.tokens, self._case.geometry
        self.cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor]
        dtype = geometry.kv_dtype.memory
        self.storage: dict[str, torch.Tensor] = {}
        if geometry.latent:
            self.cache = key = self._pool(bench, "kv_cache", geometry.head_dim_qk, dtype)
            sources = [(key, tokens.key)]
        elif self._case.views.kv is KvView.PAIRED:
            self.cache = both = self._paired(bench, "kv_cache", tokens.key.shape[-1], dtype)
            sources = [(both[:, 0], tokens.key), (both[:, 1], tokens.value)]
        else:
            self.cache = key, value = self._separate(bench)
            sources = [(key, tokens.key), (value, tokens.value)]
        sources += self._place_scales(bench)
        axes = (0, 2, 1, 3) if geometry.kv_layout is KvLayout.HND else (0, 1, 2, 3)
        self._pools = [PoolBits.of(pool.permute(axes), contents) for pool, contents in sources]
        if self._case.scales.blocks is BlockScales.SWIZZLED:
            self._pools[-1] = self._pools[-1].swizzled()

    def _place_scales(self, bench: Bench) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Allocate the tensors of scales. Returns those that steps fill, like pools, with their contents."""
        self.scales: tuple[torch.Tensor, torch.Tensor] | None = None
        key, value = self.tokens.key_scale, self.tokens.value_scale
        if key is None or value is None:
            return []
        granularity = self._case.scales.granularity
        if granularity is Granularity.HEAD:
            of_heads = [
                bench.memory.copy(name, each[0, :, 0]) for name, each in zip(_SCALES, (key, value), strict=True)
            ]
            self.scales = of_heads[0], of_heads[1]
            return []
        if self._case.views.kv is KvView.PAIRED:
            both = self._paired(bench, "kv_scales", key.shape[-1], key.dtype)
            pools = [both[:, 0], both[:, 1]]
        else:
            pools = [
                self._pool(bench, name, each.shape[-1], each.dtype)
                for name, each in zip(_SCALES, (key, value), strict=True)
            ]
        in_call = pools if granularity is Granularity.BLOCK else [pool.squeeze(-1) for pool in pools]
        self.scales = in_call[0], in_call[1]
        return [(pools[0], key), (pools[1], value)]

    def _paired(self, bench: Bench, name: str, dim: int, dtype: torch.dtype) -> torch.Tensor:
        """Return one pool of keys and values [pages, 2, ...], or of their scales, in the case's layout."""
        heads, page = self._case.geometry.kv_heads, self.page_size
        inner = (heads, page) if self._case.geometry.kv_layout is KvLayout.HND else (page, heads)
        return self._stored(bench, name, (self.total_pages, 2, *inner, dim), dtype)

    def _stored(self, bench: Bench, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of all pages, without gaps."""
        self.storage[name] = bench.memory.tensor(name, shape, dtype, hole=self.hole)
        return self.storage[name]

    def _pool(self, bench: Bench, name: str, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a pool of keys or of values, or of their scales, in the case's layout."""
        geometry = self._case.geometry
        pages, page, heads = self.total_pages, self.page_size, geometry.kv_heads
        head_major = geometry.kv_layout is KvLayout.HND
        if head_major and self._case.views.kv is not KvView.TOKEN_MAJOR:
            return self._stored(bench, name, (pages, heads, page, head_dim), dtype)
        tokens = self._stored(bench, name, (pages, page, heads, head_dim), dtype)
        return tokens.permute(0, 2, 1, 3) if head_major else tokens

    def _separate(self, bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the pools of keys and of values for a kernel that takes both."""
        tokens, dtype = self.tokens, self._case.geometry.kv_dtype.memory
        key = self._pool(bench, "k_cache", tokens.key.shape[-1], dtype)
        return key, self._pool(bench, "v_cache", tokens.value.shape[-1], dtype)

    def resident(self) -> list[torch.Tensor]:
        """Return the bits of the pools [pages, slots, heads, dim]: views, or copies without the hole.

        Keys, values, and the scales of both, if each token has its own.
        """
        return [pool.resident(self.hole) for pool in self._pools]

    def memory(self) -> list[torch.Tensor | None]:
        """View the memory of each tensor of `resident()` that copies swizzled scales; None for the others."""
        return [pool.bits if pool.interleaved and not self.hole else None for pool in self._pools]

    def write(self, step: Step, *, rejected_drafts: bool = False) -> None:
        """Set the state of the pool before `step`.

        With `rejected_drafts`, it still has a verify's writes for draft tokens that were not accepted: finite numbers
        past a request's end, up to the end of its last page. With `finite_tails`, or in a case with numbers after the
        last key, these fill all pages of a slot.
        """
        spans, page = TokenSpans(), self.page_size
        self._add_dummy(step, spans)
        for request in step.requests:
            left = self.left(request)
            first = self.tokens.spans[request.slot].start + left * page
            spans.add(self.pages[request.slot][left:], first, max(0, request.kv_len - left * page), page)
        if self._case.pages.free is Unused.NUMBERS:
            spans.add_alike(self._free(step), self.tokens.extra.start, page)
        places, source = spans.positions()
        if rejected_drafts or self._numbers_behind:
            drafts = self._drafts(step, places)
            places = np.concatenate((places, drafts), axis=1)
            source = np.concatenate((source, drafts[1] + self.tokens.extra.start))
        composed = None if self._memory.direct else self._composed()
        pools = self._pools if composed is None else composed.pools
        at, chosen = to_device(torch.from_numpy(places), pools[0].bits.device), torch.from_numpy(source)
        if self._written or composed is not None:
            self._clear(pools)
        for pool in pools:
            pool.put(at, pool.taken(chosen))
        if composed is not None:
            with self._memory.at_once():
                for name, storage in self.storage.items():
                    self._memory.overwrite(storage, composed.storage[name])
        self._written = True
        if self.other is not None:
            self.other.write(step, rejected_drafts=rejected_drafts)
        self.after_write(step)

    def _add_dummy(self, step: Step, spans: TokenSpans) -> None:
        """Add the numbers of the dummy page in a step."""
        spans.add([DUMMY_PAGE], self.tokens.extra.start, self.page_size, self.page_size)

    def _composed(self) -> _Composed | None:
        """Return a copy of the pool on the host, to be written in one piece.

        None if it is large, or has gaps or pages of another group.
        """
        whole = all(each.is_contiguous() for each in self.storage.values()) and not self.hole and self.other is None
        small = sum(each.nbytes for each in self.storage.values()) <= _MOST_COMPOSED
        if not whole or not small or not all(pool.tokens.is_cpu for pool in self._pools):
            return None
        storage = {name: torch.empty(each.shape, dtype=each.dtype) for name, each in self.storage.items()}
        bits = {each.untyped_storage().data_ptr(): storage[name] for name, each in self.storage.items()}
        return _Composed(storage, [pool.on(bits[pool.bits.untyped_storage().data_ptr()]) for pool in self._pools])

    def _clear(self, pools: Sequence[PoolBits]) -> None:
        """Fill all pages with NaN."""
        for pool in pools:
            pool.bits[: self.hole.start].fill_(pool.nan)
            pool.bits[self.hole.stop :].fill_(pool.nan)

    def unset(self, at: torch.Tensor) -> None:
        """Reset the slots `at` [2, n] (page, slot of the page) to the contents after the last key of a request."""
        numbers = torch.tensor(self.tokens.extra)[at[1]] if self._numbers_behind else None
        at = to_device(at, self._pools[0].bits.device)
        for pool in self._pools:
            if numbers is None:
                shape = (at.shape[1], *pool.tokens.shape[1:])
                pool.put(at, torch.full(shape, pool.nan, dtype=pool.bits.dtype, device=pool.bits.device))
            else:
                pool.put(at, pool.taken(numbers))

    def restore(self, resident: Sequence[torch.Tensor]) -> None:
        """Set all bits of the pools to those of `resident`, which begins as `resident()` does."""
        for pool, bits in zip(self._pools, resident, strict=False):
            pool.restore(bits, self.hole)

    def held(self, resident: Sequence[torch.Tensor], request: Request) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a request as attention sees them, in pools that start as in `resident()`.

        Both are [kv_len, heads, dim]. Keys on pages that have left the window, which no query sees, are zeros.
        """
        left = self.left(request) * self.page_size
        position = torch.arange(left, request.kv_len)
        pages = torch.tensor(self.pages[request.slot], dtype=torch.int64)
        pages -= (pages >= self.hole.stop) * len(self.hole)
        at = to_device(torch.stack((pages[position // self.page_size], position % self.page_size)), resident[0].device)
        dtype, dim = self._case.geometry.kv_dtype.torch_dtype, self._case.geometry.head_dim_vo
        tokens = [pad(bits[at[0], at[1]], (0, 0, 0, 0, left, 0)) for bits in resident[: len(self._pools)]]
        if self._case.geometry.latent is not None:
            key = tokens[0].view(dtype)
            return key, key[..., :dim]
        if self._case.scales.granularity is Granularity.BLOCK:
            key, value, of_keys, of_values = tokens
            e4m3 = torch.float8_e4m3fn
            return dequantised(key, of_keys.view(e4m3)), dequantised(value, of_values.view(e4m3))
        key, value = (each.view(dtype) for each in tokens[:2])
        if self.scales is None:
            return key, value
        of_tokens = [each.view(torch.float32) for each in tokens[2:]]
        scales = of_tokens or [each[None, :, None] for each in self.scales]
        return dequantised(key, scales[0]), dequantised(value, scales[1])

    @property
    def _numbers_behind(self) -> bool:
        return self.finite_tails or self._case.pages.behind is Unused.NUMBERS

    def _free(self, step: Step) -> list[int]:
        """Return the pages with memory that belong to no request of `step`."""
        owned = {page for request in step.requests for page in self.pages[request.slot][self.left(request) :]}
        return [page for page in self.territory() if page not in owned]

    def territory(self) -> list[int]:
        """Return the pages with memory, except those of another group and the dummy page."""
        others = set(self.foreign())
        pages = (*range(1, self.hole.start), *range(self.hole.stop, self.total_pages))
        return [page for page in pages if page not in others]

    def foreign(self) -> list[int]:
        """Return the pages of other groups of layers."""
        return [] if self.other is None else self.other.territory()

    def _drafts(self, step: Step, taken: Numbers) -> Numbers:
        """Return the page and slot [2, n] of rejected drafts, except those in `taken`, which may hold other tokens."""
        size = self.page_size
        drafts = [np.zeros(0, dtype=np.int64)]
        for request in step.requests:
            page_end = -(-request.kv_len // size) * size
            drafts_end = request.kv_len - request.q_len + step.tokens_per_request
            owned_end = len(self.pages[request.slot]) * size
            end = owned_end if self._numbers_behind else min(drafts_end, page_end)
            if request.kv_len < end:
                position = np.arange(request.kv_len, end)
                first = request.kv_len // size
                pages = np.array(self.pages[request.slot][first : -(-end // size)], dtype=np.int64)
                drafts.append(pages[position // size - first] * size + position % size)
        found = np.concatenate(drafts)
        if not len(found):
            return np.stack((found, found))
        # Counted from the first, because those after a hole are far from 0.
        first, others = found.min(), taken[0] * size + taken[1]
        free = np.zeros(found.max() - first + 1, dtype=np.bool_)
        free[found - first] = True
        inside = others[(others >= first) & (others < first + len(free))]
        free[inside - first] = False
        return np.stack(np.divmod(free.nonzero()[0] + first, size))


class OtherGroupKv(PagedKv):
    """The pages of the other group of layers in a pool, with its geometry: views of the pool of `owner`."""

    def __init__(self, owner: PagedKv, pages: dict[int, list[int]], bench: Bench) -> None:
        self.owner, self._storage = owner, owner.storage
        self._open(case_of_other_group(owner.case), bench, pages, pages)
        self.hole, self.poison_page, self.total_pages = owner.hole, owner.poison_page, owner.total_pages
        self.other = None
        self._allocate(bench)

    def territory(self) -> list[int]:
        """Return the pages of this group."""
        return sorted({page for pages in self.pages.values() for page in pages})

    def foreign(self) -> list[int]:
        """Return all other pages with memory."""
        return [DUMMY_PAGE, *self.owner.territory()]

    def _stored(self, bench: Bench, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        del bench, dtype
        return self._storage[name].view(shape)

    def _add_dummy(self, step: Step, spans: TokenSpans) -> None:
        """Leave the dummy page to the owner of the pool."""

    def _composed(self) -> None:
        """Return None: the owner's pages are in the same memory."""

    def _clear(self, pools: Sequence[PoolBits]) -> None:
        pages = torch.tensor(self.territory(), dtype=torch.int64)
        for pool in pools:
            pool.clear(pages)


_SCALES = ("k_scales", "v_scales")


class FiniteTails(PagedKv):
    """A pool whose pages hold numbers past a request's end, like a server's pages after earlier requests."""

    finite_tails = True


class ListedKv(PagedKv):
    """A pool for kernels that get lists of page ids, without entries past a request's pages.

    Only padded rows, and pages that have left a window, have the dummy page in their lists. In other steps it is a free
    page, so that a kernel shows that reads the first page where it has no id.
    """

    def _add_dummy(self, step: Step, spans: TokenSpans) -> None:
        pages = self.case.pages
        if step.padded or pages.tombstone is Tombstone.NULL or pages.free is Unused.NUMBERS:
            super()._add_dummy(step, spans)
