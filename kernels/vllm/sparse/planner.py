"""A server around one of the release's metadata builders: its buffers, its configuration, its graphs.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.answers import ABSENT, ServerMock
from attnfuzz.kernels.releases.recording import Recording, outside, record
from attnfuzz.kernels.sparse.inputs import OpInputs, graph_of
from attnfuzz.kernels.vllm.runner import machine
from attnfuzz.kernels.vllm.sparse.batch import PaddedBatch, ServerBuffers, batch_of, dummy
from attnfuzz.reference.sparse.case import SparseCase, SparseMode

LAYER: Final = "model.layers.0.self_attn.indexer.k_cache"

Activations = dict[str, torch.Tensor]
"""The inputs of a layer, by name."""


class Planner(ABC):
    """A planner on a server with `drafts` draft tokens per request, and the layer that runs its plans.

    `lists` int32 [rows, top_k] is the layer's result.
    """

    def __init__(self, loaded: Any, case: SparseCase, bench: Bench, drafts: int) -> None:
        self._loaded, self._case, self._bench, self._drafts = loaded, case, bench, drafts
        columns = OpInputs(case, 0).columns
        self._longest = columns * case.geometry.page_size
        requests = max([len(step.requests) + step.padding for step in case.steps] + [1])
        tokens = max([step.rows for step in case.steps] + [requests * (1 + drafts)])
        self._config = self._server_config(requests, tokens)
        self._graphs: dict[object, tuple[Recording, Activations]] = {}
        with self._running():
            self._buffers = ServerBuffers(loaded, requests, tokens, columns)
            self.lists = torch.full((tokens, case.geometry.top_k), -1, dtype=torch.int32)
            self._builder = self._make_builder(columns)
            loaded.module("vllm.v1.worker.workspace").init_workspace_manager(bench.device)

    @property
    def _cache_dtype(self) -> str:
        """The name of the KV cache's dtype."""
        return "auto"

    @abstractmethod
    def _spec(self) -> dict[str, Any]:
        """Return the fields of the layer's MLAAttentionSpec that depend on its cache."""

    @abstractmethod
    def _activations(self, inputs: OpInputs, batch: PaddedBatch) -> Activations:
        """Return the layer's inputs for a batch, in its order, with rows of padding."""

    @abstractmethod
    def _forward(self, metadata: Any, given: Activations, *, full: bool) -> None:
        """Run the layer by its metadata, None for none; `full` in a graph."""

    def run(self, inputs: OpInputs) -> PaddedBatch:
        """Run a step. Returns its batch."""
        step = inputs.step
        with self._running():
            if step.replayed and graph_of(step) not in self._graphs:
                self._capture(inputs)
            batch = batch_of(inputs, self._drafts)
            metadata = None
            if step.replayed or step.mode is not SparseMode.IDLE:
                # An idle rank has none without a graph (v1/worker/gpu_model_runner.py:5637).
                longest = max(batch.kv_lens)
                metadata = self._builder.build(0, self._buffers.metadata(batch, longest))
            if step.replayed:
                graph, given = self._graphs[graph_of(step)]
                with outside():
                    for name, value in self._activations(inputs, batch).items():
                        self._bench.memory.overwrite(given[name], value)
                graph.replay()
            else:
                with outside():
                    placed = self._placed(self._activations(inputs, batch))
                self._forward(metadata, placed, full=False)
        return batch

    def _capture(self, inputs: OpInputs) -> None:
        """Capture the graph of a step's size on a dummy batch (v1/worker/gpu_model_runner.py:5658)."""
        _, requests, queries = graph_of(inputs.step)
        batch = dummy(inputs, queries, requests, requests)
        metadata = self._builder.build_for_cudagraph_capture(self._buffers.metadata(batch, self._longest))
        with outside():
            placed = self._placed(self._activations(inputs, batch))
        with record(self._bench) as graph:
            self._forward(metadata, placed, full=True)
        self._graphs[graph_of(inputs.step)] = graph, placed

    def _placed(self, values: Activations) -> Activations:
        return {name: self._bench.memory.copy(name, value) for name, value in values.items()}

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Simulate the server's process."""
        loaded = self._loaded
        state = loaded.module("vllm.distributed.parallel_state")
        alone = ServerMock("group", world_size=1, rank_in_group=0)
        with (
            machine(SimpleNamespace(loaded=loaded, bench=self._bench)),  # type: ignore[arg-type]
            mock.patch.object(state, "_DCP", alone),
            mock.patch.object(loaded.module("vllm.config.vllm"), "_current_vllm_config", self._config),
            # v1/worker/workspace.py:261
            mock.patch.object(torch.accelerator, "empty_cache"),
        ):
            yield

    def _make_builder(self, columns: int) -> Any:
        loaded, geometry = self._loaded, self._case.geometry
        spec = loaded.module("vllm.v1.kv_cache_interface").MLAAttentionSpec(
            block_size=geometry.page_size, num_kv_heads=1, **self._spec()
        )
        builder = loaded.part("MetadataBuilder")
        more = {"block_table_width": columns} if getattr(builder, "requires_block_table_width", False) else {}
        return builder(spec, [LAYER], self._config, self._bench.device, **more)

    def _server_config(self, requests: int, tokens: int) -> ServerMock:
        """Return a mock of a server's VllmConfig. Reading an attribute that it lacks ends the run."""
        modes = self._loaded.module("vllm.config.compilation").CUDAGraphMode
        speculation = ServerMock(
            "speculative_config",
            num_speculative_tokens=self._drafts,
            enable_adaptive_verification=False,
            parallel_drafting=False,
        )
        heads = self._case.geometry.query_heads
        # DeepSeek-V3.2's dims.
        text = ServerMock(
            "hf_config",
            compress_ratios=ABSENT,
            model_type="deepseek_v32",
            index_topk=self._case.geometry.top_k,
            q_lora_rank=None,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=128,
        )
        return ServerMock(
            "vllm_config",
            cache_config=ServerMock(
                "cache_config", cache_dtype=self._cache_dtype, block_size=self._case.geometry.page_size
            ),
            model_config=ServerMock(
                "model_config",
                max_model_len=self._longest,
                hf_config=text,
                hf_text_config=text,
                model_arch_config=ServerMock("model_arch_config", total_num_attention_heads=heads),
                get_num_attention_heads=lambda _: heads,
                dtype=torch.bfloat16,
            ),
            scheduler_config=ServerMock("scheduler_config", max_num_seqs=requests, max_num_batched_tokens=tokens),
            parallel_config=ServerMock(
                "parallel_config",
                decode_context_parallel_size=1,
                prefill_context_parallel_size=1,
                tensor_parallel_size=1,
                cp_kv_cache_interleave_size=1,
            ),
            attention_config=ServerMock(
                "attention_config",
                # The default (config/attention.py).
                sparse_mla_prefill_workspace_factor=5,
                resolve_indexer_kv_dtype=lambda default: default,
                use_fp4_indexer_cache=False,
                hisparse_config=None,
            ),
            compilation_config=ServerMock(
                "compilation_config",
                cudagraph_mode=modes.FULL_AND_PIECEWISE,
                static_forward_context={LAYER: ServerMock("layer", prefill_backend=None)},
            ),
            kernel_config=ServerMock("kernel_config", enable_jit_warmup=False, sparse_indexer_topk_backend="auto"),
            speculative_config=speculation if self._drafts else None,
            num_speculative_tokens=self._drafts,
            use_v2_model_runner=False,
        )


def rows_in_batch(inputs: OpInputs, order: tuple[int, ...]) -> torch.Tensor:
    """Return the rows of the step in the order of a batch of its requests."""
    lengths = [request.q_len for request in inputs.step.requests]
    rows = torch.arange(sum(lengths)).split(lengths)
    return torch.cat([rows[b] for b in order]) if order else torch.zeros(0, dtype=torch.int64)
