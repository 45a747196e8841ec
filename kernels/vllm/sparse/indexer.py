"""A server's indexer: the release's own metadata builder and the layer that runs its kernels, eagerly and in graphs.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.answers import ABSENT, ServerMock
from attnfuzz.kernels.releases.recording import Recording, outside, record
from attnfuzz.kernels.sparse.index_cache import new_keys
from attnfuzz.kernels.sparse.inputs import OpInputs, graph_of
from attnfuzz.kernels.vllm.runner import machine
from attnfuzz.kernels.vllm.sparse.batch import PaddedBatch, ServerBuffers, batch_of, dummy
from attnfuzz.reference.sparse.case import SparseCase, SparseMode

LAYER: Final = "model.layers.0.self_attn.indexer.k_cache"
_LOGITS: Final = (64, 2_000, 1 << 27)
"""The scores of a chunk of a prefill at most: the default of a server, 2^27 in 512 MiB, and few."""


class _Bytes(int):
    """A limit in bytes in place of one in mebibytes, of which cases of this size would have no use."""

    def __mul__(self, _: int) -> "_Bytes":
        return self


class Indexer:
    """The indexer of a server with `drafts` draft tokens per request."""

    def __init__(self, loaded: Any, case: SparseCase, bench: Bench, drafts: int, cache: torch.Tensor) -> None:
        self._loaded, self._case, self._bench, self._drafts = loaded, case, bench, drafts
        columns = OpInputs(case, 0).columns
        self._longest = columns * case.geometry.page_size
        steps = [step for step in case.steps if step.mode is not SparseMode.IDLE]
        requests = max([len(step.requests) + step.padding for step in case.steps] + [1])
        tokens = max([step.rows for step in steps] + [requests * (1 + drafts)])
        # Pages of 64 keys with 4 bytes of scale each (model_executor/models/deepseek_v2.py, DeepseekV32IndexerCache).
        self._cache = cache.unflatten(1, (case.geometry.page_size, -1))
        self._config = self._server_config(requests, tokens)
        self._graphs: dict[object, tuple[Recording, dict[str, torch.Tensor]]] = {}
        with self._running():
            self._buffers = ServerBuffers(loaded, requests, tokens, columns)
            self._lists = torch.full((tokens, case.geometry.top_k), -1, dtype=torch.int32)
            self._builder = self._make_builder(columns)
            # A server chooses it for its longest requests (indexer.py, get_max_prefill_buffer_size).
            self._workspace = self._longest * (1 + case.seed % 3)
            self._builder.max_prefill_buffer_size = self._workspace
            loaded.module("vllm.v1.worker.workspace").init_workspace_manager(bench.device)

    def run(self, inputs: OpInputs) -> tuple[torch.Tensor, PaddedBatch]:
        """Run a step. Returns the lists int32 [rows with padding, top_k], and the batch."""
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
        return self._lists, batch

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

    def _placed(self, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: self._bench.memory.copy(name, value) for name, value in values.items()}

    def _activations(self, inputs: OpInputs, batch: PaddedBatch) -> dict[str, torch.Tensor]:
        """Return the layer's inputs for a batch, in its order. Rows of padding hold other numbers."""
        rows = max(inputs.step.rows, batch.padded_tokens)
        padding = rows - len(inputs.rows)
        order = rows_in_batch(inputs, batch.order)
        keys = inputs.index_keys[new_keys(inputs)]
        values = {"q": inputs.index_queries, "weights": inputs.index_weights, "k": keys}
        made = {}
        for name, value in values.items():
            whole = torch.zeros(rows, *value.shape[1:], dtype=value.dtype)
            whole.view(_bits(value)).fill_(1)
            whole.view(_bits(value))[: len(order)] = value.view(_bits(value))[order]
            made[name] = whole
        assert padding >= 0
        return made

    def _forward(self, metadata: Any, given: dict[str, torch.Tensor], *, full: bool) -> None:
        """Run the layer's own function, whose parameters differ between releases."""
        module, geometry = self._loaded.module(self._loaded.kind.layer), self._case.geometry
        modes = self._loaded.module("vllm.config.compilation").CUDAGraphMode
        arguments = {
            "hidden_states": given["weights"],
            "k_cache_prefix": LAYER,
            "kv_cache": self._cache,
            "q_quant": given["q"],
            "q_fp8": given["q"],
            "q_scale": None,
            "k": given["k"],
            "weights": given["weights"],
            "quant_block_size": geometry.index_dim,
            "scale_fmt": "ue8m0",
            "topk_tokens": geometry.top_k,
            "head_dim": geometry.index_dim,
            "max_model_len": self._longest,
            "total_seq_lens": self._workspace,
            "topk_indices_buffer": self._lists,
            "skip_k_cache_insert": False,
            "use_pcp": False,
            "pcp_shard_decode_requests": False,
            "dense_mha_metadata_layer_name": "",
        }
        own = module.sparse_attn_indexer
        taken = {name: value for name, value in arguments.items() if name in inspect.signature(own).parameters}
        context = SimpleNamespace(
            attn_metadata=None if metadata is None else {LAYER: metadata},
            cudagraph_runtime_mode=modes.FULL if full else modes.NONE,
        )
        with mock.patch.object(module, "get_forward_context", return_value=context):
            own(**taken)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Simulate the server's process."""
        loaded = self._loaded
        state = loaded.module("vllm.distributed.parallel_state")
        alone = ServerMock("group", world_size=1, rank_in_group=0)
        planner = loaded.backend
        limits = ServerMock(
            "envs",
            VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=_Bytes(4 * _LOGITS[self._case.seed // 3 % len(_LOGITS)]),
            VLLM_DISABLE_PYNCCL=False,
            VLLM_USE_NCCL_SYMM_MEM=False,
            VLLM_BATCH_INVARIANT=False,
        )
        with (
            machine(SimpleNamespace(loaded=loaded, bench=self._bench)),  # type: ignore[arg-type]
            mock.patch.object(state, "_DCP", alone),
            mock.patch.object(loaded.module("vllm.config.vllm"), "_current_vllm_config", self._config),
            mock.patch.object(planner, "envs", limits, create=True),
            # v1/worker/workspace.py:261
            mock.patch.object(torch.accelerator, "empty_cache"),
        ):
            yield

    def _make_builder(self, columns: int) -> Any:
        loaded, geometry = self._loaded, self._case.geometry
        spec = loaded.module("vllm.v1.kv_cache_interface").MLAAttentionSpec(
            block_size=geometry.page_size, num_kv_heads=1, head_size=geometry.index_dim + 4, dtype=torch.uint8
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
        return ServerMock(
            "vllm_config",
            model_config=ServerMock(
                "model_config",
                max_model_len=self._longest,
                hf_config=ServerMock("hf_config", compress_ratios=ABSENT, model_type="deepseek_v32"),
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
            ),
            compilation_config=ServerMock("compilation_config", cudagraph_mode=modes.FULL_AND_PIECEWISE),
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


def _bits(value: torch.Tensor) -> torch.dtype:
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32}[value.itemsize]
