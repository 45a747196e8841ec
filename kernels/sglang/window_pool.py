"""A pool of windows beside the full pool: slots of requests name the full pool, and a table translates them.

A file and line below sglang/srt/ is that of SGLang 0.5.23.
"""

from typing import Any

import torch
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.sglang.layer import LAYER_ID
from attnfuzz.kernels.sglang.pool import DUMMY_LOCATION, ServerPool, guarded_pool, pool_arguments
from attnfuzz.reference.case import Case, Step

POOLS = "sglang.srt.mem_cache.swa_memory_pool"
"""The release's module of both pools."""

_FULL_LAYER_ID = LAYER_ID + 1

_WITHOUT_TRANSPOSE = Version("0.5.15")
"""The first version whose pool has no option for transposed caches (0.5.14: mem_cache/swa_memory_pool.py)."""


class WindowPool(ServerPool):
    """The pool of layers with a window, whose rows are those of the case's own pages.

    Slots of requests, new tokens and stale table entries are those of the full pool, as on a server. `table` is the
    release's full_to_swa_index_mapping, int64 [slots of the full pool + 1]: 0 for a slot whose page is not in the
    window's pool, and -1 at the end (mem_cache/allocator/swa.py:118). `full_keys` and `full_values` are the memory of
    layers without a window, which no layer of the case may read.
    """

    def __init__(self, case: Case, bench: Bench, paged: type[PagedKv] = PagedKv) -> None:
        super().__init__(case, bench, paged)
        # Only the case's own pool has a hole.
        lead = case.pages.hole
        self._full = {slot: [page - lead for page in pages] for slot, pages in self.paged.full_pages.items()}
        self._full_poison = 1 + max((page for pages in self._full.values() for page in pages), default=0)
        # Different sizes tell the two pools apart where the release makes them.
        self._full_pages = 1 + max(self._full_poison, self.paged.total_pages)
        slots = self._full_pages * self.page_size
        self.table = bench.memory.tensor("full_to_swa_index_mapping", (slots + 1,), torch.int64)
        self.full_keys, self.full_values = (
            bench.memory.tensor(f"full_{name}_cache", (slots, *rows.shape[1:]), rows.dtype)
            for name, rows in (("k", self.keys), ("v", self.values))
            if rows is not None
        )
        self._translate(())

    @property
    def full_size(self) -> int:
        """The number of tokens that the full pool's allocator can hand out."""
        return (self._full_pages - 1) * self.page_size

    @property
    def poison_location(self) -> int:
        """The full pool's first slot that belongs to no sequence."""
        return self._full_poison * self.page_size

    def locations(self, slot: int) -> list[int]:
        """Return the full pool's slot of each position of a sequence, to the end of its last page."""
        return [page * self.page_size + offset for page in self._full[slot] for offset in range(self.page_size)]

    def write_before(self, step: Step) -> None:
        """Set the state of the pool, and the slots of the pages that the step's windows need."""
        super().write_before(step)
        owned = [(request.slot, self.paged.left(request)) for request in step.requests]
        self._translate(
            (full, own)
            for slot, left in owned
            for full, own in zip(self._full[slot][left:], self.paged.pages[slot][left:], strict=True)
        )

    def _translate(self, pages: Any) -> None:
        """Set the table to the translations of some pages of the full pool, and of the page of poison."""
        size = self.page_size
        table = torch.full(self.table.shape, DUMMY_LOCATION)
        for full, own in (*pages, (self._full_poison, self.paged.poison_page)):
            table[full * size : (full + 1) * size] = torch.arange(own * size, (own + 1) * size)
        table[-1] = -1
        self.table.copy_(table)


def release_pools(loaded: Any, case: Case, pool: WindowPool, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return the release's own SWAKVPool over both pools' memory, and its SWATokenToKVPoolAllocator.

    See mem_cache/kv_cache_configurator.py:2532. The case's layer has a window; another, which never runs, has none.
    """
    swa = loaded.module(POOLS)
    arguments = pool_arguments(case, pool, dtype)
    del arguments["layer_num"]
    size = arguments.pop("size")
    if loaded.release.version < _WITHOUT_TRANSPOSE:
        arguments["enable_kvcache_transpose"] = False

    def one_of_them(*, size: int, **given: Any) -> Any:
        full = size == pool.full_size
        rows = (pool.full_keys, pool.full_values) if full else (pool.keys, pool.values)
        return guarded_pool(loaded, case, *rows)(size=size, **given)

    own = swa.SWAKVPool(
        size=pool.full_size,
        size_swa=size,
        swa_attention_layer_ids=[LAYER_ID],
        full_attention_layer_ids=[_FULL_LAYER_ID],
        token_to_kv_pool_class=one_of_them,
        **arguments,
    )
    moved = "sglang.srt.mem_cache.allocator.swa"
    allocators = loaded.module(moved) if loaded.has(moved) else swa
    allocator = allocators.SWATokenToKVPoolAllocator(
        pool.full_size,
        size,
        page_size=pool.page_size,
        dtype=dtype,
        device=arguments["device"],
        kvcache=own,
        need_sort=False,
    )
    allocator.full_to_swa_index_mapping = pool.table
    own.register_mapping(pool.table)
    return own, allocator
