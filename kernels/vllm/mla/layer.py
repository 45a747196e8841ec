"""The release's own MLAAttention, and a model with one such layer.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any
from unittest import mock

import torch

from attnfuzz.kernels.planning.queries import softmax_scale
from attnfuzz.kernels.vllm.adaptations import LISTED_LATENTS
from attnfuzz.kernels.vllm.mla.latent_pool import LatentPool
from attnfuzz.kernels.vllm.mla.prefills import MLA, set_prefills
from attnfuzz.kernels.vllm.model import LAYER, LayerInputs, Model
from attnfuzz.reference.case import Case


def mla_layer(loaded: Any, case: Case, config: Any, pool: LatentPool, name: str = LAYER) -> Any:
    """Return the layer as a DeepSeek model creates it (layers/mla.py:100), with the projection of `pool`.

    The server runs with --attention-backend FLASHINFER_MLA and the prefill backend of its kind.
    """
    geometry, module = case.geometry, loaded.module(MLA)
    latent = geometry.latent
    assert latent is not None
    set_prefills(loaded)
    with mock.patch.object(module, "get_attn_backend", return_value=loaded.part("Backend")):
        layer = module.MLAAttention(
            num_heads=geometry.q_heads,
            scale=softmax_scale(case),
            qk_nope_head_dim=latent.nope,
            qk_rope_head_dim=latent.rope,
            v_head_dim=latent.vo,
            q_lora_rank=None,
            kv_lora_rank=latent.rank,
            kv_b_proj=pool.projection_of_layer,
            cache_config=config.cache_config,
            quant_config=None,
            prefix=name,
        )
    layer.process_weights_after_loading(geometry.dtype.torch_dtype)
    layer.kv_cache = [pool.kv_cache] if loaded.release.version in LISTED_LATENTS else pool.kv_cache
    return layer


class LatentModel(Model):
    """A model with one layer of latent attention: its inputs are queries for each head, latents and rotated keys."""

    def _attend(self, context: Any, inputs: LayerInputs) -> torch.Tensor:
        """Write the cache and attend, as the layer does itself."""
        geometry = self._case.geometry
        assert geometry.latent is not None
        shape = (inputs.query.shape[0], geometry.q_heads * geometry.latent.vo)
        if not self.writes:
            # Without a slot mapping, the layer writes nothing (mla_attention.py:1453).
            context = copy(context)
            context.slot_mapping = {}
        # The context may be that of an earlier forward, which runs again.
        with self._context.override_forward_context(context):
            out: torch.Tensor = self._layer(inputs.query, inputs.key, inputs.value, output_shape=shape)
        return out.view(-1, geometry.q_heads, geometry.latent.vo)

    def _tokens(self, at: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return latents [tokens, rank] and rotated keys [tokens, 1, rope], as views of one tensor like a model's."""
        latent = self._case.geometry.latent
        assert latent is not None
        both = self._pool.tokens.key[list(at), 0]
        return both[:, : latent.rank], both[:, None, latent.rank :]

    def _place(self, inputs: LayerInputs) -> LayerInputs:
        """Place inputs: the rotated keys lie in rows of the projection to latents (models/deepseek_v2.py)."""
        memory = self._bench.memory
        row = inputs.key.shape[-1] + inputs.value.shape[-1]
        return LayerInputs(
            memory.copy("query", inputs.query),
            memory.copy("new_latent", inputs.key),
            memory.copy("new_rotated_key", inputs.value, stride=(row, row, 1)),
        )
