"""The KV cache of a server: the pool in vLLM's layout before a step, and the tokens that the step writes."""

from collections.abc import Iterator, Sequence

import torch
from msgspec.structs import replace

from attnfuzz.kernels.backend import Attended, Bench
from attnfuzz.kernels.paged_kv import PagedKv
from attnfuzz.reference.case import Case, Request, Step

PADDED_SLOT = -1
"""The slot of padded tokens, which are not written (0.26.0: v1/worker/gpu_model_runner.py:4075)."""


class PackedKv(PagedKv):
    """A pool [pages, kv_heads, page_size, key dim + value dim]: a token's key and value lie next to each other.

    `packed` is all of it, the kv_cache of a layer (0.26.0: v1/attention/backends/flashinfer.py:405).
    """

    packed: torch.Tensor

    def _separate(self, bench: Bench) -> tuple[torch.Tensor, torch.Tensor]:
        geometry = self._case.geometry
        dims = (geometry.head_dim_qk, geometry.head_dim_vo)
        shape = (self.total_pages, geometry.kv_heads, self.page_size, sum(dims))
        self.packed = bench.memory.tensor("kv_cache", shape, geometry.kv_dtype.torch_dtype)
        key, value = self.packed.split(dims, dim=-1)
        return key, value


class VllmPool:
    """A server's pool. Page 0 is its null block, which no request owns."""

    def __init__(self, case: Case, bench: Bench) -> None:
        self._case = case
        self.paged = PackedKv(case, bench)

    @property
    def kv_cache(self) -> torch.Tensor:
        """The pool, as a layer has it."""
        return self.paged.packed

    def pages(self, request: Request) -> list[int]:
        """The pages that a request owns at a step: enough for its tokens, the new ones included."""
        return self.paged.pages[request.slot][: -(-request.kv_len // self.paged.page_size)]

    def slots(self, request: Request) -> Iterator[int]:
        """The slots of the pool for a request's new tokens."""
        pages, size = self.paged.pages[request.slot], self.paged.page_size
        for position in range(request.kv_len - request.q_len, request.kv_len):
            yield pages[position // size] * size + position % size

    def write_before(self, step: Step) -> None:
        """Set the state of the pool before `step`, without the tokens that it writes itself."""
        before = tuple(replace(each, q_len=0, kv_len=each.kv_len - each.q_len) for each in step.requests)
        self.paged.write(replace(step, requests=before))

    def new_tokens(self, requests: Sequence[Request], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the new tokens of `requests`, in their order, up to `rows` of them: padding is finite."""
        tokens = self.paged.tokens
        at = [
            tokens.spans[each.slot].start + position
            for each in requests
            for position in range(each.kv_len - each.q_len, each.kv_len)
        ]
        at += [tokens.extra[row % len(tokens.extra)] for row in range(rows - len(at))]
        return tokens.key[at], tokens.value[at]

    def attended(self, step: Step, query: torch.Tensor, first_rows: Sequence[int]) -> tuple[Attended, ...]:
        """The attention due to each request of a step, by the keys of the case, whatever the pool holds."""
        return self.paged.tokens.attended(step, query, first_rows)
