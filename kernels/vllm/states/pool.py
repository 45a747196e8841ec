"""The blocks of a server with one recurrent layer: the slots of lanes, and the ids of tokens."""

from types import SimpleNamespace
from typing import Any

from attnfuzz.kernels.vllm.states.demands import Demands
from attnfuzz.reference.case import Request


class LanePool:
    """Block ids of requests, the slots of their lane. Has the members of a pool that `ScheduledSteps` reads."""

    def __init__(self, demands: Demands, slots: list[list[int]], blocks: int) -> None:
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
        self._slots = {sequence: slots[lane] for sequence, lane in demands.lanes.items()}
        self.block_size = demands.limits.model_len
        self.paged: Any = SimpleNamespace(
            # Graphs have at most as many rows, and in early releases tokens, as there are blocks (0.33.0:
            # config/compilation.py:1525; 0.18.1: adjust_cudagraph_sizes_for_mamba_cache).
            total_pages=max(blocks, 1 + demands.limits.requests, demands.limits.tokens),
            page_size=self.block_size,
            pages=self._slots,
            poison_page=slots[0][0],
        )

    def pages(self, request: Request) -> list[int]:
        """Return the blocks of a request: all slots of its lane."""
        return self._slots[request.slot]
