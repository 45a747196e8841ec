"""The state of a server around a release's metadata builder and attention layer, with the answers that they ask for.

A file and line below vllm/ is that of vLLM 0.26.0 unless another version is named.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import torch

from attnfuzz.kernels.backend import Bench
from attnfuzz.kernels.queries import place_sinks
from attnfuzz.kernels.releases.answers import ASKED, ServerMock
from attnfuzz.kernels.releases.workspace import native_workspace
from attnfuzz.kernels.vllm.batch import Buffers, BufferSizes
from attnfuzz.kernels.vllm.pool import VllmPool
from attnfuzz.reference.case import Case

LAYER: Final = "model.layers.0.self_attn.attn"
"""The name of the layer: a case has one."""

REMEDY: Final = "add it in kernels/vllm/server.py"


class VllmServer:
    """The parts of a server that its model runners share: the pool, the layer's parameters, the model's length.

    Attributes:
        pool: The KV cache.
        sinks: The layer's attention sinks; None if it has none.
        max_model_len: No request of the case is longer.

    """

    def __init__(self, loaded: Any, case: Case, bench: Bench) -> None:
        self.loaded, self.case, self.bench = loaded, case, bench
        release = loaded.release
        ASKED.watch(release.root, release.project.title, release.version, {}, REMEDY)
        loaded.listen(ASKED.note)
        # Read where the first backend of a process allocates it (v1/attention/backends/flashinfer.py:99).
        os.environ["VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"] = str(native_workspace(case))
        _renew_buffers(loaded.backend)
        _resolve_layout(loaded)
        self.pool = VllmPool(case, bench)
        self.sinks = place_sinks(case, bench)
        self.max_model_len = max(1, *case.slot_lengths().values()) + case.max_len_slack

    @property
    def limits(self) -> BufferSizes:
        """The sizes of a model runner's buffers: as large as the case's largest step needs."""
        steps, page = self.case.steps, self.case.geometry.page_size
        return BufferSizes(
            requests=max(max(len(step.requests), step.padded_batch) for step in steps),
            tokens=max(step.padded_tokens for step in steps),
            pages=-(-self.max_model_len // page),
        )


class ModelRunner:
    """The release's metadata builder and attention layer, and a model runner's buffers.

    `drafts` is the number of tokens that a request speculates, 0 for a server without speculation.
    """

    def __init__(self, server: VllmServer, drafts: int) -> None:
        self._server, self.drafts = server, drafts
        case, backend = server.case, server.loaded.backend
        self.buffers = Buffers(case, server.bench, server.pool, server.limits)
        self._config = self._vllm_config()
        with self.configured():
            self.layer = self._layer()
            self._config.compilation_config.static_forward_context[LAYER] = self.layer
            self.builder = backend.FlashInferMetadataBuilder(self._spec(), [LAYER], self._config, server.bench.device)

    @contextmanager
    def configured(self) -> Iterator[None]:
        """The context in which a server builds its layers and plans its steps: its configuration is set."""
        module = self._server.loaded.module("vllm.config.vllm")
        with mock.patch.object(module, "_current_vllm_config", self._config):
            yield

    @property
    def threshold(self) -> int:
        """The most tokens of a request that decodes."""
        threshold: int = self.builder.reorder_batch_threshold
        return threshold

    def _layer(self) -> Any:
        """A layer with the attributes that a checkpoint without scales gives it (layers/attention/attention.py)."""
        base = self._server.loaded.module("vllm.model_executor.layers.attention_layer_base").AttentionLayerBase
        # Abstract are only the layer's answers about its backend and its cache, which are known here.
        kind = type("Layer", (base,), {"get_attn_backend": lambda _: None, "get_kv_cache_spec": lambda *_: None})
        layer = kind()
        layer.impl = self._impl()
        layer.impl.process_weights_after_loading(self._server.case.geometry.dtype.torch_dtype)
        for name in ("_q_scale", "_k_scale", "_v_scale"):
            setattr(layer, name, torch.ones(()))
            setattr(layer, f"{name}_float", 1.0)
        return layer

    def _impl(self) -> Any:
        geometry = self._server.case.geometry
        return self._server.loaded.backend.FlashInferImpl(
            num_heads=geometry.q_heads,
            head_size=geometry.head_dim_qk,
            scale=scaling(self._server.case),
            num_kv_heads=geometry.kv_heads,
            alibi_slopes=None,
            # vLLM counts the query's own key (v1/attention/backends/flashinfer.py, FlashInferImpl.__init__).
            sliding_window=None if geometry.window_left < 0 else geometry.window_left + 1,
            kv_cache_dtype="auto",
            logits_soft_cap=None,
            sinks=self._server.sinks,
        )

    def _spec(self) -> Any:
        geometry = self._server.case.geometry
        return self._server.loaded.module("vllm.v1.kv_cache_interface").FullAttentionSpec(
            block_size=geometry.page_size,
            num_kv_heads=geometry.kv_heads,
            head_size=geometry.head_dim_qk,
            dtype=geometry.dtype.torch_dtype,
            sliding_window=None if geometry.window_left < 0 else geometry.window_left + 1,
        )

    def _vllm_config(self) -> ServerMock:
        server, geometry = self._server, self._server.case.geometry
        compilation = server.loaded.module("vllm.config.compilation")
        limits = server.limits
        return ServerMock(
            "vllm_config",
            cache_config=ServerMock(
                "cache_config",
                cache_dtype="auto",
                block_size=geometry.page_size,
                # Blackwell's (0.32.0: v1/attention/backends/flashinfer.py:603).
                get_resolved_kv_cache_layout=lambda: _head_major(server.loaded),
            ),
            model_config=ServerMock(
                "model_config",
                dtype=geometry.dtype.torch_dtype,
                max_model_len=server.max_model_len,
                get_num_attention_heads=lambda _: geometry.q_heads,
                get_num_kv_heads=lambda _: geometry.kv_heads,
                rswa_window=None,
            ),
            attention_config=ServerMock(
                "attention_config",
                use_trtllm_attention=None,
                disable_flashinfer_q_quantization=False,
                use_non_causal=False,
            ),
            parallel_config=ServerMock(
                "parallel_config",
                decode_context_parallel_size=1,
                cp_kv_cache_interleave_size=1,
                dcp_comm_backend="ag_rs",
            ),
            scheduler_config=ServerMock(
                "scheduler_config", max_num_seqs=limits.requests, max_num_batched_tokens=limits.tokens
            ),
            compilation_config=ServerMock(
                "compilation_config",
                cudagraph_mode=compilation.CUDAGraphMode.FULL_AND_PIECEWISE,
                max_cudagraph_capture_size=limits.tokens,
                static_forward_context={},
            ),
            speculative_config=self._speculation(),
            num_speculative_tokens=self.drafts,
            use_v2_model_runner=False,
            kv_transfer_config=None,
        )

    def _speculation(self) -> ServerMock | None:
        if not self.drafts:
            return None
        return ServerMock(
            "speculative_config",
            num_speculative_tokens=self.drafts,
            parallel_drafting=False,
            enable_adaptive_verification=False,
        )


_BUFFERS: Final = ("trtllm_workspace_buffer", "_fi_multi_ctas_kv_counter")
"""Buffers shared by all layers of a server's process, in the module of the FlashInfer backend."""


def _renew_buffers(backend: Any) -> None:
    """Have none of the last server. The workspace exists before a capture, whose warm-up runs allocate it.

    0.26.0: v1/worker/gpu_model_runner.py:6866.
    """
    for name in _BUFFERS:
        if hasattr(backend, name):
            setattr(backend, name, None)
    backend._get_trtllm_workspace_buffer()  # noqa: SLF001 - there is no other way to it


def _resolve_layout(loaded: Any) -> None:
    """Set the layout of KV caches that the backend requires, where a process has one (v1/attention/selector.py:201).

    Later it is part of the configuration (0.29.0: v1/attention/backends/flashinfer.py:537).
    """
    required = getattr(loaded.backend.FlashInferBackend, "get_required_kv_cache_layout", None)
    if required is not None:
        loaded.module("vllm.v1.attention.backends.utils").set_kv_cache_layout(required())


def scaling(case: Case) -> float:
    """The factor of the logits: 1 / sqrt(head dim), times the case's factor."""
    return case.scales.softmax / math.sqrt(case.geometry.head_dim_qk)


def _head_major(loaded: Any) -> Any:
    """The layout of a pool whose blocks have heads first, one layer after another."""
    return loaded.module("vllm.v1.kv_cache_interface").KVCacheLayout.LBHNC
