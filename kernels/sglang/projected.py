"""A latent prefill: the release's own loop over chunks of the prefix, with keys and values of this project.

DeepSeek's layers attend to a request's new tokens, then to its prefix in chunks: latents are fetched by the locations
that the release derives from req_to_token, projected to keys and values per head, attended to, and merged. The code in
the release's mixin runs unchanged. Instead of a projection, each location has independent keys and values.
"""

import contextlib
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Output
from attnfuzz.kernels.planning.queries import BmmScales, draw_queries, packed_rows, softmax_scale
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.kernels.releases.errors import Moved
from attnfuzz.kernels.sglang.batch import mode_of
from attnfuzz.kernels.sglang.layer import Inputs
from attnfuzz.kernels.sglang.pool import first_new, new_tokens
from attnfuzz.kernels.sglang.runner import Server
from attnfuzz.kernels.trtllm.prefill import chunk_prefixes
from attnfuzz.reference.case import Mode, Step
from attnfuzz.reference.geometry import Latent

_METHODS = "sglang.srt.models.deepseek_common.attention_forward_methods.forward_mha"
_HANDLERS = "sglang.srt.models.deepseek_common.attention_backend_handler"
_ABSORBED = "MLA"
_ONE_SHOT = "MHA_ONE_SHOT"
_THRESHOLD = 8192
_MERGES = ("sglang.srt.layers.attention.triton_ops.merge_state", "sglang.kernels.ops.attention.merge_state")
"""Modules with the Triton kernel for merges; the second one from 0.5.16 on."""


class ProjectedAttention:
    """Prefills of one case, with keys [nope + rope] and values [vo] for each head and location of the pool."""

    def __init__(self, server: Server) -> None:
        self._server, self._case = server, server.case
        latent = server.case.geometry.latent
        assert latent is not None
        self._latent = latent
        self._in_chunks = True

    @cached_property
    def _located(self) -> "_Located":
        return _Located(self._server, self._latent)

    def method(self, batch: Any) -> str:
        """Return the release's own choice of a forward method for a batch, by its name in AttnForwardMethod.

        Prefixes from a threshold on are projected, shorter ones are attended to as latents. It is 8,192 tokens unless a
        server's SGLANG_CHUNKED_PREFIX_CACHE_THRESHOLD changes it (environ.py:362): to 0 here for cases with a chunked
        prefill, and for every second other one.
        """
        server = self._server
        handlers = server.loaded.module(_HANDLERS)
        batch.get_max_chunk_capacity = lambda: max(self._case.chunk_capacity, batch.batch_size)
        chunked = any(step.mode is Mode.CHUNKED_PREFILL for step in self._case.steps)
        attention = SimpleNamespace(
            flashinfer_mla_disable_ragged=False,
            disable_chunked_prefix_cache=False,
            chunked_prefix_cache_threshold=0 if chunked or self._case.seed % 2 else _THRESHOLD,
            qk_rope_head_dim=self._latent.rope,
        )
        handler = handlers.AttentionBackendRegistry.get_handler(server.kind_serving(mode_of(batch)).server_name)
        return str(handler(attention, batch).name)

    def absorbs(self, batch: Any) -> bool:
        """Return whether a batch attends to latents, without projections."""
        return self.method(batch) == _ABSORBED

    def inputs(self, index: int, rows: int) -> Inputs:
        """Return queries of step `index`, and the projected keys and values of its new tokens; padding is finite."""
        step = self._case.steps[index]
        queries = draw_queries(self._case, index, rows, self._latent.nope + self._latent.rope)
        key, value = self._located.new(step, rows)
        memory = self._server.bench.memory
        return Inputs(memory.copy("query", queries), memory.copy("key", key), memory.copy("value", value))

    def attend(self, backend: Any, batch: Any, inputs: Inputs) -> torch.Tensor:
        """Return out [rows, q_heads, vo]."""
        layer = _layer_of(self._server.loaded, _Projection(backend, self._server, self._located, self._latent))
        key, value = inputs.key, inputs.value
        forward, self._in_chunks = layer.forward_normal_chunked_kv_core, True
        if self.method(batch) == _ONE_SHOT:
            batch.mha_one_shot = True
            forward, self._in_chunks = layer.forward_normal_one_shot_core, False
            if any(batch.extend_prefix_lens_cpu):
                key, value = self._located.at(batch.fetch_mha_one_shot_kv_indices())
        out: torch.Tensor = forward(inputs.query, key, value, batch)
        return out.view(-1, self._case.geometry.q_heads, self._latent.vo)

    def output(self, step: Step, inputs: Inputs, out: torch.Tensor) -> Output:
        """Return the output of a step, which is rounded once, and once more by each merge."""
        # A server schedules no request without a token, so these don't count when chunks are cut.
        prefixes = [first_new(request) for request in step.requests if request.q_len and self._in_chunks]
        return Output(
            out=out,
            lse=None,
            attended=self._located.tokens.attended(step, inputs.query, packed_rows(step)),
            roundings=1 + len(chunk_prefixes(prefixes, self._case.chunk_capacity)),
            # Projections from the cache are not quantised.
            **BmmScales(bmm1_scale=softmax_scale(self._case), bmm2_scale=1.0),
        )


class _Located:
    """Keys [n, q_heads, nope + rope] and values [n, q_heads, vo] of all tokens, by their rows in the pool."""

    def __init__(self, server: Server, latent: Latent) -> None:
        geometry = server.case.geometry
        self.tokens = SlotTokens(
            server.case,
            heads=geometry.q_heads,
            key_dim=latent.nope + latent.rope,
            value_dim=latent.vo,
            dtype=geometry.dtype,
            part=1,
            extra=1,
        )
        at = torch.full((server.pool.keys.shape[0],), -1, dtype=torch.long)
        for slot, span in self.tokens.spans.items():
            for location, token in zip(server.pool.locations(slot), span, strict=False):
                first = int(at[location])
                if first < 0:
                    at[location] = token
                    continue
                # Sequences that share a page share its tokens.
                self.tokens.key[token] = self.tokens.key[first]
                self.tokens.value[token] = self.tokens.value[first]
        device = server.bench.device
        self._at, self._key, self._value = at.to(device), self.tokens.key.to(device), self.tokens.value.to(device)

    def new(self, step: Step, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of the tokens that a step adds, and finite ones up to `rows`."""
        new = new_tokens(self.tokens, step)
        at = torch.tensor([*new, *[self.tokens.extra.start] * (rows - len(new))], dtype=torch.long)
        return self.tokens.key[at], self.tokens.value[at]

    def at(self, locations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values at some locations, NaN where there are no tokens."""
        tokens = self._at[locations.long()]
        key, value = self._key[tokens], self._value[tokens]
        empty = (tokens < 0)[:, None, None]
        return key.masked_fill(empty, torch.nan), value.masked_fill(empty, torch.nan)


class _Projection:
    """The members of a DeepSeek layer that the release's mixin uses. Locations represent their latents.

    A file and line is that of 0.5.9's models/deepseek_common/attention_forward_methods/forward_mha.py.
    """

    def __init__(self, backend: Any, server: Server, located: _Located, latent: Latent) -> None:
        self._backend, self._server, self._located = backend, server, located
        self.num_local_heads = server.case.geometry.q_heads
        self.kv_lora_rank, self.qk_nope_head_dim = latent.rank, latent.nope
        self.qk_rope_head_dim, self.v_head_dim = latent.rope, latent.vo

    def attn_mha(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: Any, **options: Any) -> Any:
        """Call the layer over projected keys; other arguments of later versions are for their own kernels."""
        return self._backend.forward(
            q, k, v, self._server.prefill_layer, batch, save_kv_cache=options.get("save_kv_cache", False)
        )

    def _get_mla_kv_buffer(
        self, kv_indices: torch.Tensor, dst_dtype: torch.dtype, forward_batch: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return latents by location, and the rotated part of their keys (line 405)."""
        del dst_dtype, forward_batch
        key, _ = self._located.at(kv_indices)
        return kv_indices, key[..., self.qk_nope_head_dim :]

    def kv_b_proj(self, latents: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return keys without their rotated part, and values, side by side for each head (line 370)."""
        key, value = self._located.at(latents)
        return torch.cat([key[..., : self.qk_nope_head_dim], value], dim=-1), None

    def o_proj(self, out: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Omit the model's next layer."""
        return out, None


def _layer_of(loaded: Any, projection: _Projection) -> Any:
    """Return a layer with the release's own methods, around a projection."""
    methods = loaded.module(_METHODS)
    # The kernel of sgl_kernel needs CUDA. The release's own replacement also uses logarithms in base e
    # (sgl-kernel/csrc/attention/merge_attn_states.cu), but FlashInfer's are in base 2: SGLang issue #40903.
    if not hasattr(methods, "merge_state_v2"):
        methods.merge_state_v2 = _merge_of(loaded)
    layer: Any = type("DeepseekLayer", (_Projection, methods.DeepseekMHAForwardMixin), {})
    made = layer.__new__(layer)
    made.__dict__.update(projection.__dict__)
    return made


def _merge_of(loaded: Any) -> Any:
    *others, last = _MERGES
    for name in others:
        with contextlib.suppress(Moved):
            return loaded.module(name).merge_state_triton
    return loaded.module(last).merge_state_triton
