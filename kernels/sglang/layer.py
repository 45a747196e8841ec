"""The attention layer of a model: the release's own RadixAttention, with the scales of a checkpoint."""

from dataclasses import dataclass
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Bench, Unsupported
from attnfuzz.kernels.planning.queries import key_dim, place_queries, softmax_scale
from attnfuzz.reference.case import Case

LAYER_ID = 0
"""The id of the case's only layer."""


def attention_layer(loaded: Any, case: Case, bench: Bench) -> Any:
    """Return a layer over the KV cache, of latents if the case has them (DeepSeek's attn_mqa)."""
    geometry = case.geometry
    if geometry.window_left == 0:
        # 0.5.9: layers/radix_attention.py:78.
        raise Unsupported("SGLang's layers treat a window of one key as none")
    if geometry.attention_chunk % geometry.page_size:
        # 0.5.9: layers/attention/flashattention_backend.py:243.
        raise Unsupported("SGLang's chunks of attention have whole pages")
    return _layer(
        loaded,
        case,
        bench,
        **({"use_irope": True} if geometry.attention_chunk else {}),
        num_kv_heads=geometry.kv_heads,
        head_dim=geometry.head_dim_qk,
        v_head_dim=geometry.head_dim_vo,
        sliding_window_size=geometry.window_left,
        **({"logit_cap": geometry.soft_cap} if geometry.soft_cap else {}),
    )


def prefill_layer(loaded: Any, case: Case, bench: Bench) -> Any:
    """Return a layer over keys and values projected from the latents, separate for each head (DeepSeek's attn_mha)."""
    latent = case.geometry.latent
    assert latent is not None
    heads = case.geometry.q_heads
    return _layer(loaded, case, bench, num_kv_heads=heads, head_dim=key_dim(case), v_head_dim=latent.vo)


def _layer(loaded: Any, case: Case, bench: Bench, **arguments: Any) -> Any:
    radix_attention = loaded.module("sglang.srt.layers.radix_attention").RadixAttention
    layer = radix_attention(
        num_heads=case.geometry.q_heads, scaling=softmax_scale(case), layer_id=LAYER_ID, **arguments
    )
    quantised = case.geometry.kv_dtype is not case.geometry.dtype
    if quantised or (case.scales.k, case.scales.v) != (1, 1):
        # As SGLang's loader sets them for a checkpoint with scales (0.5.9: layers/quantization/kv_cache.py:78).
        for name, value in (("k_scale", case.scales.k), ("v_scale", case.scales.v)):
            setattr(layer, name, bench.memory.copy(name, torch.tensor([value], dtype=torch.float32)).squeeze())
            setattr(layer, f"{name}_float", value)
    return layer


@dataclass(frozen=True)
class Inputs:
    """The inputs of one forward: query [rows, q_heads, head_dim_qk], key and value [rows, kv_heads, head_dim].

    The query has the case's view: a slice of a fused row, or contiguous. Latents have no value.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor | None

    @classmethod
    def place(cls, case: Case, bench: Bench, query: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor]) -> "Inputs":
        """Place inputs in guarded memory."""
        key, value = keys
        return cls(
            place_queries(case, bench, query),
            bench.memory.copy("new_key", key),
            None if case.geometry.latent else bench.memory.copy("new_value", value),
        )

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors of the inputs."""
        return [each for each in (self.query, self.key, self.value) if each is not None]

    def fill(self, other: "Inputs") -> None:
        """Copy other inputs into these, which a graph reads."""
        for mine, new in zip(self.tensors, other.tensors, strict=True):
            mine.copy_(new)
