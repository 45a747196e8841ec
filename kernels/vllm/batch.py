"""A step as a model runner hands it to a metadata builder: its persistent buffers, its order of requests.

A file and line below vllm/ is that of vLLM 0.26.0 unless another version is named.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from attnfuzz.kernels.backend import Bench, Fill
from attnfuzz.kernels.lengths import running_sum
from attnfuzz.kernels.page_ids import DUMMY_PAGE
from attnfuzz.kernels.vllm.pool import PADDED_SLOT, VllmPool
from attnfuzz.reference.case import Case, Request, Step, TableTail


@dataclass(frozen=True)
class BufferSizes:
    """The sizes of a server's buffers: `requests` and `tokens` of a step, and the pages of a request."""

    requests: int
    tokens: int
    pages: int


class Rows:
    """The requests of a step in the release's own order, as its reorder function takes an InputBatch.

    Requests that decode come first, then those with a prefix, then those without one. `order` are indices of the step's
    requests.
    """

    def __init__(self, loaded: Any, requests: Sequence[Request], threshold: int) -> None:
        self.req_ids = [str(index) for index in range(len(requests))]
        self.order = list(range(len(requests)))
        self.num_computed_tokens_cpu = np.array([each.kv_len - each.q_len for each in requests], dtype=np.int32)
        # A request decodes if its prompt is computed: one with a prefix and a single token, or with drafts.
        prompts = [each.kv_len - each.q_len if each.q_len <= threshold else each.kv_len for each in requests]
        self.num_prompt_tokens = np.array(prompts, dtype=np.int32)
        reorder = loaded.module("vllm.v1.attention.backends.utils").reorder_batch_to_split_decodes_and_prefills
        scheduled = {name: each.q_len for name, each in zip(self.req_ids, requests, strict=True)}
        if requests:
            reorder(self, SimpleNamespace(num_scheduled_tokens=scheduled), decode_threshold=threshold)

    def swap_states(self, first: int, second: int) -> None:
        """Swap two requests (v1/worker/gpu_input_batch.py)."""
        names, order = self.req_ids, self.order
        names[first], names[second] = names[second], names[first]
        order[first], order[second] = order[second], order[first]
        for numbers in (self.num_computed_tokens_cpu, self.num_prompt_tokens):
            numbers[[first, second]] = numbers[[second, first]]

    @property
    def is_prefilling(self) -> torch.Tensor:
        """Whether each request has tokens of its prompt to compute."""
        return torch.from_numpy(self.num_computed_tokens_cpu < self.num_prompt_tokens)


class Buffers:
    """The persistent tensors of a model runner (v1/worker/gpu_model_runner.py, __init__, and v1/worker/block_table.py).

    Those on the device are in guarded memory; `query_start_loc_cpu` and `seq_lens_cpu` are copies on the host.
    """

    def __init__(self, case: Case, bench: Bench, pool: VllmPool, limits: BufferSizes) -> None:
        self._case, self._pool = case, pool

        def zeros(name: str, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return bench.memory.tensor(name, shape, dtype, fill=Fill.ZEROS)

        self.query_start_loc = zeros("query_start_loc", limits.requests + 1)
        self.seq_lens = zeros("seq_lens", limits.requests)
        self.block_table = zeros("block_table", limits.requests, limits.pages)
        self.slot_mapping = zeros("slot_mapping", limits.tokens, dtype=torch.int64)
        self.query_start_loc_cpu = torch.zeros(limits.requests + 1, dtype=torch.int32)
        self.seq_lens_cpu = torch.zeros(limits.requests, dtype=torch.int32)
        self.block_table.copy_(self._leftovers())

    @property
    def host(self) -> tuple[torch.Tensor, ...]:
        """The copies on the host, which no graph holds."""
        return self.query_start_loc_cpu, self.seq_lens_cpu

    def fill(self, requests: Sequence[Request], padded_requests: int, padded_tokens: int) -> None:
        """Set the buffers for a step, in the order of `requests` (_prepare_inputs and _build_attention_metadata)."""
        count, slots = len(requests), [slot for each in requests for slot in self._pool.slots(each)]
        begins = running_sum(each.q_len for each in requests)
        self._set_lengths(begins, [each.kv_len for each in requests])
        for row, each in enumerate(requests):
            pages = self._pool.pages(each)
            self.block_table[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        self.block_table[count:padded_requests] = DUMMY_PAGE
        self.slot_mapping[: len(slots)] = torch.tensor(slots, dtype=torch.int64)
        self.slot_mapping[len(slots) : padded_tokens] = PADDED_SLOT

    def fill_dummy(self, requests: int, stride: int) -> None:
        """Set the buffers for a capture (_dummy_run): lengths without a prefix, the null block, and no slots."""
        self._set_lengths(running_sum([stride] * requests), [stride] * requests)
        self.block_table[:requests] = DUMMY_PAGE
        self.slot_mapping[: requests * stride] = PADDED_SLOT

    def _set_lengths(self, begins: Sequence[int], lengths: Sequence[int]) -> None:
        """Set the offsets of queries, of which the last one is repeated, and the lengths, followed by zeros."""
        self.query_start_loc_cpu[: len(begins)] = torch.tensor(begins, dtype=torch.int32)
        self.query_start_loc_cpu[len(begins) :] = begins[-1]
        self.query_start_loc.copy_(self.query_start_loc_cpu)
        self.seq_lens_cpu[: len(lengths)] = torch.tensor(lengths, dtype=torch.int32)
        self.seq_lens_cpu[len(lengths) :] = 0
        self.seq_lens.copy_(self.seq_lens_cpu)

    def _leftovers(self) -> torch.Tensor:
        """Contents of the block table's rows from earlier requests, as the case's table tail says."""
        case, paged = self._case, self._pool.paged
        rows, width = self.block_table.shape
        owned = sorted({page for pages in paged.pages.values() for page in pages}) or [DUMMY_PAGE]
        match case.pages.tail:
            case TableTail.ZEROS | TableTail.MINUS_ONE:
                # The table begins as zeros, and no server writes -1 to it.
                return torch.full((rows, width), DUMMY_PAGE)
            case TableTail.POISON:
                return torch.full((rows, width), paged.poison_page)
            case TableTail.STALE:
                chance = random.Random(case.seed)
                return torch.tensor([[chance.choice(owned) for _ in range(width)] for _ in range(rows)])


def common_metadata(loaded: Any, buffers: Buffers, rows: Rows | None, shape: "Shape") -> Any:
    """The release's CommonAttentionMetadata over the buffers (v1/worker/gpu_model_runner.py:2390)."""
    requests = shape.requests
    prefilling = torch.zeros(requests, dtype=torch.bool)
    if rows is not None:
        prefilling[: len(rows.order)] = rows.is_prefilling
    return loaded.module("vllm.v1.attention.backend").CommonAttentionMetadata(
        query_start_loc=buffers.query_start_loc[: requests + 1],
        query_start_loc_cpu=buffers.query_start_loc_cpu[: requests + 1],
        seq_lens=buffers.seq_lens[:requests],
        seq_lens_cpu_upper_bound=buffers.seq_lens_cpu[:requests],
        num_reqs=requests,
        num_actual_tokens=shape.tokens,
        max_query_len=shape.max_query_len,
        max_seq_len=shape.max_seq_len,
        block_table_tensor=buffers.block_table[:requests],
        slot_mapping=buffers.slot_mapping[: shape.slots],
        causal=True,
        is_prefilling=prefilling,
    )


@dataclass(frozen=True)
class Shape:
    """The numbers of a batch that are fixed on the host: `requests` and `tokens` count padding if attention is padded.

    `slots` counts padded tokens always: the KV cache is written for all of them (:4263, has_separate_kv_update).
    """

    requests: int
    tokens: int
    slots: int
    max_query_len: int
    max_seq_len: int

    @classmethod
    def of(cls, step: Step, requests: Sequence[Request], *, padded: bool) -> "Shape":
        """That of a step with these scheduled requests; attention is padded in a full graph alone."""
        return cls(
            requests=step.padded_batch if padded else len(requests),
            tokens=step.padded_tokens if padded else step.tokens,
            slots=step.padded_tokens,
            max_query_len=max(each.q_len for each in requests),
            max_seq_len=max(each.kv_len for each in requests),
        )

    @classmethod
    def of_capture(cls, step: Step, max_model_len: int) -> "Shape":
        """That of a dummy run: a graph is captured with the model's longest length."""
        stride = step.tokens_per_request
        return cls(step.padded_batch, step.padded_tokens, step.padded_tokens, stride, max_model_len)
