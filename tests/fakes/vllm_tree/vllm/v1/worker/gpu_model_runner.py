"""A model runner that has the names of vLLM's and is right: it pads to the sizes of graphs and of other ranks."""

from typing import Any, NamedTuple

import numpy as np
import torch
from vllm.config.compilation import CUDAGraphMode
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.utils import reorder_batch_to_split_decodes_and_prefills
from vllm.v1.worker.dp_utils import coordinate_batch_across_dp
from vllm.v1.worker.gpu_input_batch import Buffer, CachedRequestState, InputBatch


class BatchDescriptor(NamedTuple):
    """The shape of a batch."""

    num_tokens: int
    num_reqs: int


class GPUModelRunner:
    """The model runner."""

    def __init__(self, vllm_config: Any, device: torch.device) -> None:
        self.vllm_config, self.device = vllm_config, device
        scheduler, self.max_model_len = vllm_config.scheduler_config, vllm_config.model_config.max_model_len
        rows, tokens = scheduler.max_num_seqs, scheduler.max_num_batched_tokens
        self.uniform_decode_query_len = 1 + vllm_config.num_speculative_tokens
        self.requests: dict[str, CachedRequestState] = {}
        self.input_batch = InputBatch(rows, self.max_model_len, vllm_config.cache_config.block_size, tokens)
        self.query_start_loc = Buffer(rows + 1, dtype=torch.int32)
        self.seq_lens = torch.zeros(rows, dtype=torch.int32, device="cuda")
        self.optimistic_seq_lens_cpu = torch.zeros(rows, dtype=torch.int32)
        self.input_ids = torch.zeros(tokens, dtype=torch.int32, device="cuda")
        self.positions = torch.zeros(tokens, dtype=torch.int64, device="cuda")
        self.sizes = vllm_config.compilation_config.cudagraph_capture_sizes
        self.model: Any = None

    def initialize_kv_cache(self, kv_cache_config: Any) -> None:
        """Create the metadata builder."""
        (group,) = kv_cache_config.kv_cache_groups
        (self.layer,) = group.layer_names
        layer = self.vllm_config.compilation_config.static_forward_context[self.layer]
        builder = layer.get_attn_backend().get_builder_cls()
        self.builder = builder(group.kv_cache_spec, group.layer_names, self.vllm_config, self.device)
        self.reorder_batch_threshold = self.builder.reorder_batch_threshold
        self.initialize_kv_cache_tensors()

    def initialize_kv_cache_tensors(self) -> None:
        """Allocate the pool."""
        raise NotImplementedError

    def _update_states(self, ordered: Any) -> None:
        for name in ordered.finished_req_ids:
            self.requests.pop(name, None)
        for new in ordered.scheduled_new_reqs:
            self.requests[new.req_id] = CachedRequestState(
                new.req_id,
                new.prompt_token_ids,
                new.mm_features,
                new.sampling_params,
                None,
                new.block_ids,
                new.num_computed_tokens,
                [],
            )
        cached = ordered.scheduled_cached_reqs
        for name, blocks, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            state = self.requests[name]
            state.num_computed_tokens = computed
            if blocks is not None:
                state.block_ids[0].extend(blocks[0])
        batch = _Rows(list(ordered.num_scheduled_tokens))
        reorder_batch_to_split_decodes_and_prefills(batch, ordered, decode_threshold=self.reorder_batch_threshold)
        states = [self.requests[name] for name in batch.req_ids]
        self.input_batch.fill(states, ordered.scheduled_spec_decode_tokens)

    def execute_model(self, ordered: Any) -> None:
        """Run a step."""
        self._update_states(ordered)
        batch, table = self.input_batch, self.input_batch.block_table[0]
        states = [self.requests[name] for name in batch.req_ids]
        counts = [ordered.num_scheduled_tokens[name] for name in batch.req_ids]
        tokens, requests = sum(counts), len(counts)
        size = self.vllm_config.cache_config.block_size
        ids, positions, slots = [], [], []
        for row, (state, count) in enumerate(zip(states, counts, strict=True)):
            for position in range(state.num_computed_tokens, state.num_computed_tokens + count):
                ids.append(int(batch.token_ids_cpu[row, position]))
                positions.append(position)
                slots.append(state.block_ids[0][position // size] * size + position % size)
        self.input_ids[:tokens] = torch.tensor(ids, dtype=torch.int32)
        self.positions[:tokens] = torch.tensor(positions)
        table.slot_mapping.gpu[:tokens] = torch.tensor(slots)
        lengths = [state.num_computed_tokens + count for state, count in zip(states, counts, strict=True)]
        uniform = set(counts) == {self.uniform_decode_query_len}
        mode, shape = self._pad(tokens, requests, uniform=uniform)
        self._run(counts, lengths, mode, shape)

    def _dummy_run(
        self,
        num_tokens: int,
        cudagraph_runtime_mode: CUDAGraphMode | None = None,
        *,
        uniform_decode: bool = False,
        **_: Any,
    ) -> None:
        stride = self.uniform_decode_query_len
        counts = [stride] * (num_tokens // stride)
        mode, shape = self._pad(num_tokens, len(counts), uniform=uniform_decode)
        assert cudagraph_runtime_mode in (None, mode)
        self.input_batch.block_table[0].slot_mapping.gpu[: shape.num_tokens] = -1
        self._run(counts, counts, mode, shape, dummy=True)

    def _pad(self, tokens: int, requests: int, *, uniform: bool) -> tuple[CUDAGraphMode, BatchDescriptor]:
        wish = CUDAGraphMode.FULL if uniform else CUDAGraphMode.PIECEWISE
        padded = next(size for size in self.sizes if size >= tokens)
        ranks = self.vllm_config.parallel_config.data_parallel_size
        padded, agreed = coordinate_batch_across_dp(tokens, padded, wish.value, ranks)
        mode = CUDAGraphMode(agreed)
        full = mode is CUDAGraphMode.FULL
        return mode, BatchDescriptor(padded, padded // self.uniform_decode_query_len if full else requests)

    def _run(
        self, counts: list[int], lengths: list[int], mode: CUDAGraphMode, shape: BatchDescriptor, *, dummy: bool = False
    ) -> None:
        tokens, requests, full = sum(counts), len(counts), mode is CUDAGraphMode.FULL
        begins = np.cumsum([0, *counts])
        self.query_start_loc.np[: requests + 1] = begins
        self.query_start_loc.np[requests + 1 :] = begins[-1]
        self.query_start_loc.gpu.copy_(self.query_start_loc.cpu)
        self.optimistic_seq_lens_cpu[:requests] = torch.tensor(lengths, dtype=torch.int32)
        self.optimistic_seq_lens_cpu[requests:] = 0
        self.seq_lens.copy_(self.optimistic_seq_lens_cpu)
        table = self.input_batch.block_table[0]
        table.commit_block_table(requests)
        table.block_table.gpu[requests : shape.num_reqs] = 0
        slots = table.slot_mapping.gpu[: shape.num_tokens]
        slots[tokens:] = -1
        metadata = CommonAttentionMetadata(
            query_start_loc=self.query_start_loc.gpu[: shape.num_reqs + 1],
            query_start_loc_cpu=self.query_start_loc.cpu[: shape.num_reqs + 1],
            seq_lens=self.seq_lens[: shape.num_reqs],
            num_reqs=shape.num_reqs,
            num_actual_tokens=shape.num_tokens if full else tokens,
            max_query_len=max(counts),
            max_seq_len=self.max_model_len if dummy else max(lengths),
            block_table_tensor=table.block_table.gpu[: shape.num_reqs],
            slot_mapping=slots,
        )
        with set_forward_context(
            attn_metadata=None if dummy and not full else {self.layer: self.builder.build(0, metadata)},
            slot_mapping={self.layer: slots},
            cudagraph_runtime_mode=mode,
            batch_descriptor=shape,
        ):
            self.model(input_ids=self.input_ids[: shape.num_tokens], positions=self.positions[: shape.num_tokens])


class _Rows:
    """Names in an order that may change."""

    def __init__(self, req_ids: list[str]) -> None:
        self.req_ids = req_ids

    def swap_states(self, first: int, second: int) -> None:
        """Swap two names."""
        names = self.req_ids
        names[first], names[second] = names[second], names[first]
