"""The blocks of a server with one recurrent layer, and the ids of tokens."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from attnfuzz.kernels.vllm.states.demands import Demands
from attnfuzz.reference.case import Request


class LanePool:
    """Block ids of requests. Has the members of a pool that `ScheduledSteps` reads.

    `tables` are those of sequences at their end, of which a request has the first `columns` after that many tokens.
    """

    def __init__(
        self, demands: Demands, tables: Mapping[int, list[int]], blocks: int, columns: Callable[[int], int]
    ) -> None:
        spans, first = {}, 0
        ends: dict[int, int] = {}
        for step in demands.case.steps:
            for request in step.requests:
                ends[request.slot] = max(ends.get(request.slot, 0), request.kv_len)
        for slot, end in ends.items():
            length = end + 1 + demands.limits.graphs[0]
            spans[slot] = range(first, first + length)
            first += length
        self.tokens: Any = SimpleNamespace(spans=spans)
        self._tables, self._columns = tables, columns
        self.block_size = demands.block_size
        self.paged: Any = SimpleNamespace(
            # Graphs have at most as many rows, and in early releases tokens, as there are blocks (0.33.0:
            # config/compilation.py:1525; 0.18.1: adjust_cudagraph_sizes_for_mamba_cache).
            total_pages=max(blocks, 1 + demands.limits.requests, demands.limits.tokens),
            page_size=self.block_size,
            pages=tables,
            poison_page=blocks - 1,
        )

    def pages(self, request: Request) -> list[int]:
        """Return the blocks of a request."""
        return self._tables[request.slot][: self._columns(request.kv_len)]
