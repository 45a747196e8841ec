"""The KV cache of a server: the pool in vLLM's layout before a step, and the tokens that the step writes."""

from collections.abc import Sequence
from typing import Final

import torch
from msgspec.structs import replace

from attnfuzz.kernels.interface.backend import Attended, Bench, WrittenCache, WrittenTensor
from attnfuzz.kernels.interface.transfers import to_device
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.reference.case import Case, Request, Step
from attnfuzz.reference.geometry import KvLayout

WRITER: Final = "reshape_and_cache_flash"
"""The kernel that writes the cache."""


class PackedKv(PagedKv):
    """A pool [pages, kv_heads, page_size, key dim + value dim]: a token's key and value are adjacent.

    `packed` is the whole pool, a layer's kv_cache (0.26.0: v1/attention/backends/flashinfer.py:405). In the layout NHD
    it is a view of [pages, page_size, kv_heads, key dim + value dim].
    """

    packed: torch.Tensor

    @property
    def _head_major(self) -> bool:
        return self._case.geometry.kv_layout is KvLayout.HND

    def _of_a_page(self) -> tuple[int, int]:
        """Return the heads and tokens of a page in the case's layout."""
        heads, tokens = self._case.geometry.kv_heads, self.page_size
        return (heads, tokens) if self._head_major else (tokens, heads)

    def _separate(self, bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
        geometry = self._case.geometry
        dims = (geometry.head_dim_qk, geometry.head_dim_vo)
        shape = (self.total_pages, *self._of_a_page(), sum(dims))
        both = self._stored(bench, "kv_cache", shape, geometry.kv_dtype.torch_dtype)
        self.packed = both if self._head_major else both.transpose(1, 2)
        key, value = both.split(dims, dim=-1)
        return key, value


class StackedKv(PackedKv):
    """A pool [pages, 2, page_size, kv_heads, dim]: a page has all of its keys, then all of its values.

    In the layout HND it is a view of one with heads first. Releases before 0.26 have it (0.25.1:
    v1/attention/backends/flashinfer.py:392).
    """

    def _separate(self, bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
        both = self._paired(bench, "kv_cache", self._case.geometry.head_dim_qk, self._case.geometry.kv_dtype.memory)
        self.packed = both.transpose(2, 3) if self._head_major else both
        return both[:, 0], both[:, 1]


class SplitKv(PackedKv):
    """A pool [2, pages, page_size, kv_heads, dim]: all keys, then all values.

    In the layout HND it is a view of one with heads first. FlashAttention has it in early releases (0.22.1:
    v1/attention/backends/flash_attn.py:149).
    """

    def _separate(self, bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
        geometry = self._case.geometry
        shape = (2, self.total_pages, *self._of_a_page(), geometry.head_dim_qk)
        both = self._stored(bench, "kv_cache", shape, geometry.kv_dtype.torch_dtype)
        self.packed = both.transpose(2, 3) if self._head_major else both
        return both[0], both[1]


class VllmPool:
    """A server's pool, with the memory layout `form`. Page 0 is its null block, which no request owns.

    `names` are the names of its tensors, and `kernel` is the kernel that writes them.
    """

    names: tuple[str, ...] = ("key_cache", "value_cache")
    kernel = WRITER

    def __init__(self, case: Case, bench: Bench, form: type[PagedKv]) -> None:
        self._case = case
        self.paged = form(case, bench)
        self._before: list[torch.Tensor] = []

    @property
    def tokens(self) -> SlotTokens:
        """The tokens of the server's model."""
        return self.paged.tokens

    @property
    def block_size(self) -> int:
        """The number of a request's tokens per page."""
        return self.paged.page_size

    @property
    def kv_cache(self) -> torch.Tensor:
        """The pool as a layer's kv_cache."""
        assert isinstance(self.paged, PackedKv)
        # Caches of FP8 are tensors of bytes (0.33.0: utils/torch_utils.py:46).
        packed = self.paged.packed
        return packed.view(torch.uint8) if packed.itemsize == 1 else packed

    def pages(self, request: Request) -> list[int]:
        """Return the pages that a request owns at a step: enough for all of its tokens, new ones included."""
        return self.paged.pages[request.slot][: -(-request.kv_len // self.block_size)]

    def write_before(self, step: Step) -> None:
        """Set the state of the pool before `step`, without the tokens that it writes itself."""
        before = tuple(replace(each, q_len=0, kv_len=each.kv_len - each.q_len) for each in step.requests)
        self.paged.write(replace(step, requests=before))
        self._before = [each.clone() for each in self.paged.resident()]

    def written(self, step: Step, free: Sequence[tuple[int, int]] = ()) -> WrittenCache:
        """Return the pool before and after `step`, which must write its new tokens only: not even the null block.

        `free` are the (slot, position) of tokens that may have any contents after it.
        """
        tokens = self.paged.tokens
        new = [
            (index, token, each.slot, each.kv_len - each.q_len + token)
            for index, each in enumerate(step.requests)
            for token in range(each.q_len)
        ]
        places = [self._place(slot, position) for _, _, slot, position in new]
        anything = [self._place(slot, position) for slot, position in free]
        due = [tokens.spans[slot].start + position for _, _, slot, position in new]
        return self._compared(places, due, [(index, token) for index, token, *_ in new], anything)

    def _place(self, slot: int, position: int) -> tuple[int, int]:
        """Return the page of a token, and its slot in the page."""
        return self.paged.pages[slot][position // self.paged.page_size], position % self.paged.page_size

    def _compared(
        self,
        places: Sequence[tuple[int, int]],
        due: Sequence[int],
        of: Sequence[tuple[int, int]],
        free: Sequence[tuple[int, int]] = (),
    ) -> WrittenCache:
        """Return the pool before and after writes of the tokens `due` to `places`, each (page, slot).

        `of` are their requests. The places in `free` may hold anything.
        """
        tokens = self.paged.tokens
        device = self._before[0].device
        at, anywhere = (
            to_device(torch.tensor(each, dtype=torch.int64).reshape(-1, 2).T, device) for each in (places, free)
        )
        sources = (tokens.key, tokens.value)[: len(self.names)]
        tensors = []
        for name, before, after, values in zip(self.names, self._before, self.paged.resident(), sources, strict=True):
            # Two bounds, because zeros may have either sign.
            low, high = (to_device(values[due], device) for _ in range(2))
            tensors.append(WrittenTensor(name, before, after, at, low, high, anywhere))
        return WrittenCache(tuple(tensors), tuple(of), kernel=self.kernel)

    def attended(self, step: Step, query: torch.Tensor, first_rows: Sequence[int]) -> tuple[Attended, ...]:
        """Return the attention expected for each request of a step: to the case's keys, whatever the pool holds."""
        return self.tokens.attended(step, query, first_rows)

    def restore(self, contents: Sequence[torch.Tensor]) -> None:
        """Set the contents of the tensors of `written`."""
        self.paged.restore(contents)
