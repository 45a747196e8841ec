"""The inputs of a step as vLLM's model runner has them: buffers that live as long as the server, and their padding.

A file and line below vllm/ is that of vLLM 0.33.0.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from attnfuzz.kernels.releases.recording import outside
from attnfuzz.kernels.sparse.inputs import OpInputs
from attnfuzz.kernels.vllm.adaptations import PADDED_WITH_MINUS_ONE
from attnfuzz.reference.sparse.case import SparseMode


@dataclasses.dataclass(frozen=True)
class PaddedBatch:
    """The requests of a forward in the order of the runner's batch, and its size with padding.

    Shapes: `table` int32 [requests, columns], page ids; `slots` int64 [tokens], of new tokens. `order` has the numbers
    that the requests have in the step, () in a dummy batch.
    """

    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    table: torch.Tensor
    slots: torch.Tensor
    padded_requests: int
    padded_tokens: int
    order: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """The number of tokens without padding."""
        return sum(self.q_lens)


def batch_of(inputs: OpInputs, drafts: int) -> PaddedBatch:
    """Return the batch of a step on a server with `drafts` draft tokens per request.

    Requests that the runner takes as decodes come first, and those without a prefix last
    (v1/attention/backends/utils.py:939).
    """
    step = inputs.step
    if step.mode is SparseMode.IDLE:
        return dummy(inputs, 1, step.padding if step.replayed else 1)
    requests = step.requests
    order = sorted(
        range(len(requests)), key=lambda b: (requests[b].q_len == requests[b].kv_len, requests[b].q_len > 1 + drafts)
    )
    new = [torch.arange(requests[b].kv_len - requests[b].q_len, requests[b].kv_len) for b in order]
    padded = step.padding if step.replayed else 0
    return PaddedBatch(
        q_lens=tuple(requests[b].q_len for b in order),
        kv_lens=tuple(requests[b].kv_len for b in order),
        table=inputs.table[order],
        slots=torch.cat([inputs.slots_of(b, positions) for b, positions in zip(order, new, strict=True)]),
        padded_requests=len(order) + padded,
        padded_tokens=step.tokens + padded * step.queries,
        order=tuple(order),
    )


def dummy(inputs: OpInputs, queries: int, requests: int, real: int = 1) -> PaddedBatch:
    """Return a dummy batch of `real` requests with new tokens alone, in the null block (gpu_model_runner.py:5658)."""
    return PaddedBatch(
        q_lens=(queries,) * real,
        kv_lens=(queries,) * real,
        table=torch.zeros(real, inputs.columns, dtype=torch.int32),
        slots=torch.full((real * queries,), -1),
        padded_requests=requests,
        padded_tokens=requests * queries,
    )


class ServerBuffers:
    """The buffers of a server with `requests` requests and `tokens` tokens at most, and tables of `columns` pages."""

    def __init__(self, loaded: Any, requests: int, tokens: int, columns: int) -> None:
        self._metadata = loaded.module("vllm.v1.attention.backend").CommonAttentionMetadata
        self._null = -1 if loaded.release.version in PADDED_WITH_MINUS_ONE else 0
        self._starts = torch.zeros(requests + 1, dtype=torch.int32)
        self._lengths = torch.zeros(requests, dtype=torch.int32)
        self._table = torch.zeros(requests, columns, dtype=torch.int32)
        self._slots = torch.full((tokens,), -1, dtype=torch.int64)
        self._positions = torch.zeros(tokens, dtype=torch.int64)

    def metadata(self, batch: PaddedBatch, longest: int) -> Any:
        """Write a batch to the buffers, and return its CommonAttentionMetadata (gpu_model_runner.py:2363)."""
        with outside():
            starts, lengths = self._host(batch)
        count, tokens = batch.padded_requests, batch.padded_tokens
        given = {
            "query_start_loc": self._starts[: count + 1],
            "query_start_loc_cpu": starts,
            "seq_lens": self._lengths[:count],
            "num_reqs": count,
            "num_actual_tokens": tokens,
            "max_query_len": max(batch.q_lens),
            "max_seq_len": longest,
            "block_table_tensor": self._table[:count],
            "slot_mapping": self._slots[:tokens],
            "positions": self._positions[:tokens],
            "is_prefilling": torch.tensor([q > 1 for q in batch.q_lens] + [False] * (count - len(batch.q_lens))),
            "seq_lens_cpu_upper_bound": lengths,
            "_seq_lens_cpu": lengths,
        }
        known = {field.name for field in dataclasses.fields(self._metadata)}
        return self._metadata(**{name: value for name, value in given.items() if name in known})

    def _host(self, batch: PaddedBatch) -> Sequence[torch.Tensor]:
        """Write a batch to the buffers. Returns the host's starts and lengths."""
        count, real, tokens = batch.padded_requests, len(batch.q_lens), batch.tokens
        starts = torch.full((count + 1,), tokens, dtype=torch.int32)
        starts[: real + 1] = torch.tensor((0, *batch.q_lens)).cumsum(0)
        lengths = torch.zeros(count, dtype=torch.int32)
        lengths[:real] = torch.tensor(batch.kv_lens)
        self._starts[: count + 1] = starts
        self._lengths.zero_()
        self._lengths[:real] = lengths[:real]
        self._table[:real] = batch.table
        self._table[real:count] = self._null
        self._slots.fill_(-1)
        self._slots[:tokens] = batch.slots
        ends = [torch.arange(kv - q, kv) for q, kv in zip(batch.q_lens, batch.kv_lens, strict=True)]
        self._positions[:tokens] = torch.cat(ends)
        return starts, lengths
