"""A mock of the model runner that a release's attention backend reads, with a server's values.

A file and line is that of SGLang 0.5.9 unless another version is named.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from packaging.version import Version

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.paged_kv import FiniteTails, PagedKv
from attnfuzz.kernels.planning.queries import softmax_scale
from attnfuzz.kernels.releases.answers import ABSENT, ASKED, ServerMock
from attnfuzz.kernels.releases.workspace import native_workspace
from attnfuzz.kernels.sglang import process
from attnfuzz.kernels.sglang.kinds import SglangKind
from attnfuzz.kernels.sglang.layer import attention_layer, prefill_layer
from attnfuzz.kernels.sglang.padding import ranks_of
from attnfuzz.kernels.sglang.pins import REMEDY, pinned
from attnfuzz.kernels.sglang.pool import Halves, RequestRows, ServerPool, release_kv_pool
from attnfuzz.kernels.sglang.trees import draft_depth, topk_of
from attnfuzz.kernels.sglang.window_pool import WindowPool, release_pools
from attnfuzz.reference.case import Case, Launch, Mode, Step, Tombstone

_SINCE_HALVES = Version("0.5.23")
"""The first version that allocates a layer's keys and values as halves of one tensor."""

EXTRA_CONTEXT = 4
"""Columns of req_to_token beyond the context length and the drafts (model_runner_kv_cache_mixin.py:424)."""


class Server:
    """The environment of a release's backend for one case, set up like the process of a new server.

    Attributes:
        model_runner: The backend's ModelRunner. A session sets its `attn_backend`.
        args: The release's own ServerArgs.
        pool: The KV cache; `model_runner.token_to_kv_pool` is the release's own pool over it.
        rows: req_to_token; `model_runner.req_to_token_pool` is the release's own around it.
        layer: The release's RadixAttention over the cache; `prefill_layer` over projected keys, None without latents.
        ranks: The ranks of the server, including this one.
        draft_tokens: Tokens that a request drafts, 0 without speculation.
        context_len: The model's context length: no request of the case is longer.
        further_requests: Requests that a batch may have beyond the largest one of the case: a server captures graphs
            of many sizes, whose buffers have the rows of the largest.

    """

    def __init__(self, loaded: Any, case: Case, bench: Bench) -> None:
        self.loaded, self.case, self.bench = loaded, case, bench
        release = loaded.release
        ASKED.watch(release.root, release.project.title, release.version, pinned(release.version), REMEDY)
        loaded.listen(ASKED.note)
        self.pool: ServerPool = self._make_pool()
        self.ranks = ranks_of(case)
        self.draft_tokens = max((step.drafts for step in case.steps), default=0)
        # A padded row of a verify has one key and its drafts, so the context length is at least that.
        self.context_len = self._context() + case.max_len_slack
        self.further_requests = 1 if case.max_len_slack else 0
        config = self._config = self._model_config()
        self.args = self.begin()
        own_rows = self._request_pool(
            loaded.module("sglang.srt.mem_cache.memory_pool"),
            size=max(len(case.slot_lengths()), *map(self._fewest_requests, case.steps)) + self.further_requests,
            max_context_len=self.context_len + EXTRA_CONTEXT + self.draft_tokens,
            device=str(bench.device),
            enable_memory_saver=False,
        )
        self.rows = RequestRows(case, bench, self.pool, own_rows)
        self.model_runner: Any = self._model_runner(config, own_rows)
        self.layer = attention_layer(loaded, case, bench)
        self.prefill_layer: Any = prefill_layer(loaded, case, bench) if case.geometry.latent else None

    def begin(self) -> Any:
        """Set up the process as that of this server. Returns its ServerArgs."""
        workspace = native_workspace(self.case) if self.bench.device.type == "cpu" else ON_A_GPU
        return process.begin(self.loaded, self.ranks, self._config, self._arguments(), workspace, self.bench.device)

    def _fewest_requests(self, step: Step) -> int:
        """Return the lowest limit of requests (--max-running-requests) with which a server runs a step.

        Its batches are padded to a multiple of the attention group's tokens, with requests beyond the limit.
        """
        if step.launch is not Launch.EAGER or not step.padded:
            return step.padded_batch
        return max(
            len(step.requests), step.padded_batch - (self.ranks.attention - 1) // max(1, step.tokens_per_request)
        )

    def prepare_step(self, step: Step) -> None:
        """Set the state of the pool and the request rows before a forward of `step`."""
        self.pool.write_before(step)
        self.rows.write_before(step)

    def forwarding(self) -> AbstractContextManager[Any]:
        """Return the context of a forward. From 0.5.14 on, layers look up the backend there.

        0.5.14: model_executor/forward_context.py.
        """
        if not _has(self.loaded, "model_executor/forward_context.py"):
            return nullcontext()
        context = self.loaded.module("sglang.srt.model_executor.forward_context")
        entered: AbstractContextManager[Any] = context.forward_context(
            context.ForwardContext(attn_backend=self.model_runner.attn_backend)
        )
        return entered

    def _context(self) -> int:
        """Return the shortest context of a server that runs the case."""
        return max((1 + self.draft_tokens, *self.case.slot_lengths().values(), *_before_drafts(self.case)))

    def kind_serving(self, mode: Mode) -> SglangKind:
        """Return the kind of backend that runs a mode."""
        serving: SglangKind = self.loaded.kind.serving(mode, self.case.seed)
        return serving

    def _make_pool(self) -> ServerPool:
        """Return the KV cache of the case."""
        paged = _paged(self.case, self.bench.device, self.loaded.release.version)
        separate = self.case.pages.tombstone is not Tombstone.NONE
        return (WindowPool if separate else ServerPool)(self.case, self.bench, paged)

    def _release_pools(self, dtype: torch.dtype) -> tuple[Any, Any]:
        """Return the release's own pool over it, and its allocator."""
        if isinstance(self.pool, WindowPool):
            return release_pools(self.loaded, self.case, self.pool, dtype)
        own_pool = self._release_pool(dtype)
        allocator = ServerMock(
            "token_to_kv_pool_allocator",
            get_kvcache=lambda: own_pool,
            # Slots are physical, not virtual (0.5.15: layers/attention/triton_backend.py:155, 0.5.17: :167 and
            # unified_mem_hooks.py:62), and those of one pool for all layers
            # (layers/attention/triton_backend.py:1287).
            translate_kv_loc=ABSENT,
            translate_kv_loc_dense=ABSENT,
            full_v2p_page_table=ABSENT,
            translate_loc_from_full_to_swa=ABSENT,
        )
        return own_pool, allocator

    def _release_pool(self, dtype: torch.dtype) -> Any:
        """Return the release's own pool over it, if all layers share one."""
        return release_kv_pool(self.loaded, self.case, self.pool, dtype)

    def _request_pool(self, memory_pool: Any, **arguments: Any) -> Any:
        """Return the release's own req_to_token_pool."""
        return memory_pool.ReqToTokenPool(**arguments)

    def _arguments(self) -> dict[str, Any]:
        """Return the server's start arguments, by the fields of ServerArgs."""
        drafts = self.draft_tokens
        prefill, decode = (self.kind_serving(mode).server_name for mode in (Mode.EXTEND, Mode.DECODE))
        arguments: dict[str, Any] = {
            "attention_backend": prefill,
            "page_size": self.case.geometry.page_size,
        }
        if decode != prefill:
            arguments |= {"prefill_attention_backend": prefill, "decode_attention_backend": decode}
        if decode != prefill and drafts:
            verifies = self.kind_serving(Mode.TARGET_VERIFY).server_name
            arguments["speculative_attention_mode"] = "decode" if verifies == decode else "prefill"
        if _has(self.loaded, "model_executor/cuda_graph_config.py"):
            # A server derives it from its GPU (0.5.23: arg_groups/fields/exec_.py:606). Prefills run eagerly here.
            graphs = self.loaded.module("sglang.srt.model_executor.cuda_graph_config")
            arguments["cuda_graph_config"] = graphs.CudaGraphConfig()
        if drafts:
            arguments |= {
                "speculative_algorithm": "EAGLE",
                "speculative_eagle_topk": topk_of(self.case),
                "speculative_num_draft_tokens": drafts,
                "speculative_num_steps": draft_depth(self.case),
            }
        return arguments

    def _model_runner(self, config: ServerMock, own_rows: Any) -> ServerMock:
        geometry = self.case.geometry
        kv_dtype = geometry.kv_dtype.torch_dtype
        own_pool, allocator = self._release_pools(kv_dtype)
        algorithm = self.loaded.module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
        return ServerMock(
            "model_runner",
            model_config=config,
            server_args=self.args,
            kv_cache_dtype=kv_dtype,
            # --kv-cache-dtype by default.
            kv_cache_dtype_str="auto",
            attention_chunk_size=geometry.attention_chunk or None,
            prefill_aware_swa=False,
            # In later versions, a part of the runner has them (0.5.16: model_runner.py, ps).
            **(parallel := {"attn_cp_size": 1, "dcp_size": 1, "dcp_rank": 0, "tp_size": self.ranks.processes}),
            ps=ServerMock("ps", **parallel),
            dtype=geometry.dtype.torch_dtype,
            page_size=geometry.page_size,
            device=str(self.bench.device),
            # Every layer has a window, or with a pool of windows, all but one that never runs. The chunk of a model
            # without windows counts as one (0.5.9: model_runner.py:870).
            sliding_window_size=geometry.window_left if geometry.window_left >= 0 else geometry.attention_chunk or None,
            req_to_token_pool=own_rows,
            token_to_kv_pool=own_pool,
            token_to_kv_pool_allocator=allocator,
            kv_index_translator=self._translator(own_rows, own_pool, allocator),
            max_running_requests=own_rows.size,
            gpu_id=0,
            decode_num_tokens_per_req=lambda: self.draft_tokens or 1,
            prefill_attention_backend_str=self.kind_serving(Mode.EXTEND).server_name,
            decode_attention_backend_str=self.kind_serving(Mode.DECODE).server_name,
            model=ServerMock("model", modules=lambda: [self.layer]),
            # No Mamba layers, and whole activations on each rank (0.5.23: model_runner.py).
            mambaish_config=None,
            hybrid_gdn_config=None,
            kimi_linear_config=None,
            linear_attn_model_spec=None,
            attn_tp_sequence_sharded=lambda _: False,
            enable_elastic_ep=False,
            is_draft_worker=False,
            spec_algorithm=algorithm.from_string("EAGLE" if self.draft_tokens else None),
            attn_backend=None,
        )

    def _translator(self, own_rows: Any, own_pool: Any, allocator: Any) -> Any | None:
        """Return the release's own KVIndexTranslator, if it has one (0.5.23: model_runner.py:954)."""
        if not _has(self.loaded, "mem_cache/kv_index_translator.py"):
            return None
        return self.loaded.module("sglang.srt.mem_cache.kv_index_translator").KVIndexTranslator(
            req_to_token=own_rows.req_to_token,
            token_to_kv_pool_allocator=allocator,
            token_to_kv_pool=own_pool,
            page_size=self.case.geometry.page_size,
            device=str(self.bench.device),
        )

    def _model_config(self) -> ServerMock:
        geometry, group = self.case.geometry, self.ranks.attention
        dims = {"head_dim": geometry.head_dim_qk, "v_head_dim": geometry.head_dim_vo}
        if geometry.latent:
            dims = {
                "kv_lora_rank": geometry.latent.rank,
                "qk_nope_head_dim": geometry.latent.nope,
                "qk_rope_head_dim": geometry.latent.rope,
                "head_dim": geometry.latent.nope + geometry.latent.rope,
                "v_head_dim": geometry.latent.vo,
            }
        architecture = "DeepseekV3ForCausalLM" if geometry.latent else "LlamaForCausalLM"
        return ServerMock(
            "model_config",
            # The model's heads are divided among the ranks of a group; a case has those of one rank.
            num_attention_heads=geometry.q_heads * group,
            get_max_num_attention_heads=lambda: geometry.q_heads * group,
            get_num_kv_heads=lambda *_, **__: geometry.kv_heads,
            attention_arch="MLA" if geometry.latent else "MHA",
            is_local_attention_model=bool(geometry.attention_chunk),
            attention_chunk_size=geometry.attention_chunk or None,
            swa_v_head_dim=dims["v_head_dim"],
            context_len=self.context_len,
            hidden_size=geometry.q_heads * group * geometry.head_dim_vo,
            scaling=softmax_scale(self.case),
            is_multimodal=False,
            is_encoder_decoder=False,
            # Neither of these has Mamba layers (0.5.14: layers/dp_attention.py:287, forward_batch_info.py:1181).
            hf_config=ServerMock(
                "hf_config",
                architectures=[architecture],
                hybrid_override_pattern=None,
                mtp_hybrid_override_pattern=None,
            ),
            hf_text_config=ServerMock(
                "hf_text_config", num_attention_heads=geometry.q_heads * group, attn_logit_softcapping=None
            ),
            dtype=geometry.dtype.torch_dtype,
            **dims,
        )


def _paged(case: Case, device: torch.device, version: Version) -> type[PagedKv]:
    """Return the pool's memory layout. Unwritten slots are NaN for this project's kernels.

    fmha_v2 multiplies the values after a request's last key by 0, and takes K and V by one pointer (0.5.23:
    layers/attention/trtllm_mha_backend.py:440, mem_cache/memory_pool.py:2630), so they are finite, as on a server.
    """
    if device.type == "cpu" or case.geometry.latent:
        return PagedKv
    return Halves if version >= _SINCE_HALVES else FiniteTails


_ROOM: Final = 3
"""Tokens of the context that remain when a draft model decodes: the last is not used, nor the one before, and one more
ends the request (0.5.23: managers/tp_worker.py:421, managers/scheduler.py:2714)."""


def _before_drafts(case: Case) -> list[int]:
    """Return the shortest contexts in which a server runs the case's draft decodes."""
    drafts = [step for step in case.steps if step.mode is Mode.DRAFT_DECODE]
    return [request.kv_len - request.q_len + _ROOM for step in drafts for request in step.requests]


def _has(loaded: Any, file: str) -> bool:
    """Return whether the release has a file below sglang/srt."""
    there: bool = (loaded.release.root / "sglang" / "srt" / file).is_file()
    return there


ON_A_GPU = 32 << 20
"""Bytes of the workspace on a GPU; a server has 128 to 512 MiB. XQA's partial results take a few MiB in any geometry
that is drawn (attnfuzz.kernels.gpu.direct.xqa), and its semaphores, which 0.5.23 adds, 8 MiB; others take nothing.
"""
