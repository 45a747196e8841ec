"""The release's own pools over guarded memory: the KV cache before a step, and the locations of its new tokens."""

import random
from typing import Any

import torch
from msgspec.structs import replace

from attnfuzz.kernels.interface.backend import Bench, Fill, Unsupported
from attnfuzz.kernels.planning.paged_kv import FiniteTails, PagedKv
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.reference.case import Case, KvView, Mode, PageOrder, Request, Step, TableTail
from attnfuzz.reference.geometry import KvLayout

DUMMY_LOCATION = 0
"""The slot of the pool to which padded tokens are written (0.5.9: mem_cache/memory_pool.py:808)."""


class Halves(FiniteTails):
    """Keys and values as halves of one token-major allocation, for kernels that address both by one pointer."""

    def _separate(self, bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
        geometry = self._case.geometry
        shape = (2, self.total_pages, self.page_size, geometry.kv_heads, geometry.head_dim_qk)
        both = bench.memory.tensor("kv_cache", shape, geometry.kv_dtype.torch_dtype)
        return both[0].permute(0, 2, 1, 3), both[1].permute(0, 2, 1, 3)


class ServerPool:
    """A pool of KV pages in SGLang's layout, as handed out by a server's allocator.

    `keys` and `values` are [pages * page_size, kv_heads, head_dim], token-major (`values` None for latents). The token
    at position p of sequence s is in row `locations(s)[p]`. `paged` determines the memory layout.
    """

    def __init__(self, case: Case, bench: Bench, paged: type[PagedKv] = PagedKv) -> None:
        geometry = case.geometry
        if case.views.kv is not KvView.TOKEN_MAJOR or geometry.kv_layout is not KvLayout.HND:
            raise Unsupported("SGLang's pools are token-major, and seen as HND")
        self._case = case
        self.paged = paged(case, bench)
        self.page_size = geometry.page_size
        cache = self.paged.cache
        parts = (cache,) if isinstance(cache, torch.Tensor) else cache
        rows = [part.permute(0, 2, 1, 3).flatten(0, 1) for part in parts]
        self.keys, self.values = rows[0], (rows[1] if len(rows) > 1 else None)

    @property
    def tokens(self) -> SlotTokens:
        """The keys and values of all sequences, as they are once written."""
        return self.paged.tokens

    @property
    def size(self) -> int:
        """The number of tokens that a server's allocator can hand out: all but the dummy page."""
        return (self.paged.total_pages - 1) * self.page_size

    @property
    def poison_location(self) -> int:
        """The first slot that belongs to no sequence."""
        return self.paged.poison_page * self.page_size

    def locations(self, slot: int) -> list[int]:
        """Return the row of each position of a sequence, to the end of its last page."""
        pages = self.paged.pages[slot]
        return [page * self.page_size + offset for page in pages for offset in range(self.page_size)]

    def new_locations(self, step: Step) -> list[int]:
        """Return the rows to which `step` writes its new tokens, request by request: a server's out_cache_loc."""
        return [
            location
            for request in step.requests
            for location in self.locations(request.slot)[first_new(request) : request.kv_len]
        ]

    def write_before(self, step: Step) -> None:
        """Set the state of the pool before a forward of `step`, without the tokens that it writes itself.

        Rejected tokens of a draft or a verify remain where the server's queries reach them.
        """
        before = tuple(replace(request, q_len=0, kv_len=first_new(request)) for request in step.requests)
        self.paged.write(replace(step, requests=before), rejected_drafts=step.mode is Mode.DRAFT_EXTEND)


def first_new(request: Request) -> int:
    """Return the first position that a step writes; a request with fewer keys than queries has no prefix."""
    return max(0, request.kv_len - request.q_len)


def new_tokens(tokens: SlotTokens, step: Step) -> list[int]:
    """Return the indices into `tokens` of a step's new tokens, in the order of `ServerPool.new_locations`."""
    return [
        tokens.spans[request.slot].start + position
        for request in step.requests
        for position in range(first_new(request), request.kv_len)
    ]


class RequestRows:
    """The release's req_to_token: a row per request, with the location of each of its tokens.

    `of` maps sequences to rows. Columns past a request's tokens hold leftovers of the row's earlier owner, according to
    the case's table tail.
    """

    def __init__(self, case: Case, bench: Bench, pool: ServerPool, release_pool: Any) -> None:
        self._case, self._pool = case, pool
        shape = release_pool.req_to_token.shape
        table = bench.memory.tensor("req_to_token", shape, torch.int32, fill=Fill.ZEROS)
        release_pool.req_to_token = self.table = table
        free = list(release_pool.free_slots)
        chance = random.Random(case.seed)
        if case.pages.order is PageOrder.SHUFFLED:
            chance.shuffle(free)
        elif case.pages.order is PageOrder.REVERSED:
            free.reverse()
        self.of = dict(zip(case.slot_lengths(), free, strict=False))
        self.table.copy_(self._garbage())

    def _garbage(self) -> torch.Tensor:
        """Return the initial contents of all rows."""
        owned = [location for slot in self.of for location in self._pool.locations(slot)] or [DUMMY_LOCATION]
        rows, width = self.table.shape
        match self._case.pages.tail:
            case TableTail.ZEROS | TableTail.MINUS_ONE:
                # The table is initialized with zeros, and no server writes -1 to it.
                return torch.full((rows, width), DUMMY_LOCATION)
            case TableTail.POISON:
                return (self._pool.poison_location + torch.arange(width) % self._pool.page_size).expand(rows, width)
            case TableTail.STALE:
                source = torch.Generator().manual_seed(self._case.seed)
                return torch.tensor(owned)[torch.randint(len(owned), (rows, width), generator=source)]

    def write_before(self, step: Step) -> None:
        """Set the rows before a forward of `step`, including the locations of its new tokens.

        A verify allocates all its drafts. The locations of those that were not accepted are still there.
        """
        for request in step.requests:
            end = max(request.kv_len, first_new(request) + step.tokens_per_request)
            held = self._pool.locations(request.slot)[:end]
            held += [DUMMY_LOCATION] * (min(end, self.table.shape[1]) - len(held))
            self.table[self.of[request.slot], : len(held)] = torch.tensor(held, dtype=torch.int32)


def release_kv_pool(loaded: Any, case: Case, pool: ServerPool, dtype: torch.dtype) -> Any:
    """Return the release's own MHATokenToKVPool or MLATokenToKVPool over `pool`'s memory."""
    return guarded_pool(loaded, case, pool.keys, pool.values)(**pool_arguments(case, pool, dtype))


def guarded_pool(loaded: Any, case: Case, keys: torch.Tensor, values: torch.Tensor | None) -> Any:
    """Return the class of the release's pool, which is built by its own __init__ over these rows.

    Its buffers are replaced where it creates them, so that everything else is unchanged; only its addresses for moving
    and transferring tokens are invalid.
    """
    memory = loaded.module("sglang.srt.mem_cache.memory_pool")
    parent: Any = memory.MLATokenToKVPool if case.geometry.latent else memory.MHATokenToKVPool

    class GuardedPool(parent):  # type: ignore[misc] # a class of the release
        def _create_buffers(self) -> None:
            # Allocating a second pool would only take time.
            self.device = "meta"
            super()._create_buffers()
            self.device = str(keys.device)
            for name, ours in (("kv_buffer", keys), ("k_buffer", keys), ("v_buffer", values)):
                theirs = getattr(self, name, None)
                if not theirs:
                    continue
                assert ours is not None
                if theirs[0].shape != ours.shape:
                    raise Unsupported(f"the release's {name} is {tuple(theirs[0].shape)}, not {tuple(ours.shape)}")
                setattr(self, name, [ours.view(self.store_dtype)])

    return GuardedPool


def pool_arguments(case: Case, pool: ServerPool, dtype: torch.dtype) -> dict[str, Any]:
    """Return the arguments of a release's pool."""
    geometry = case.geometry
    arguments: dict[str, Any] = {
        "size": pool.size,
        "page_size": pool.page_size,
        "dtype": dtype,
        "layer_num": 1,
        "device": str(pool.keys.device),
        "enable_memory_saver": False,
    }
    if geometry.latent:
        return arguments | {"kv_lora_rank": geometry.latent.rank, "qk_rope_head_dim": geometry.latent.rope}
    return arguments | {
        "head_num": geometry.kv_heads,
        "head_dim": geometry.head_dim_qk,
        "v_head_dim": geometry.head_dim_vo,
        "enable_alt_stream": False,
    }
