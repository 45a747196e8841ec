"""The layers of a case of recurrent state: the release's own, with weights and inputs by the names of kernels."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from attnfuzz.kernels.sglang.states.kernels import StateKernels
from attnfuzz.kernels.sglang.states.mamba import MambaKernels, MixerLayer
from attnfuzz.kernels.sglang.states.pool import LAYER, OTHER_WIDTH, part_dims
from attnfuzz.kernels.sglang.states.server import StateServer


class ServedLayer(Protocol):
    """A layer: `inputs` are those of a forward, made of the contents of a kernel's arguments."""

    def inputs(self, contents: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the inputs by the names of the layer's arguments; the first one has a row for each token."""

    def forward(self, batch: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the outputs [tokens, value_heads, value_dim]."""


class RadixLayer:
    """A release's RadixLinearAttention with the weights of a case."""

    def __init__(self, server: StateServer, weights: Mapping[str, Any]) -> None:
        case, kind = server.state_case, server.kind
        shape, self._kind = case.shape, kind
        query, key, value = part_dims(case, kind)
        self._key = key
        heads = (1, 1, 1) if kind.convolves else (shape.heads, shape.heads, shape.value_heads)
        self._layer = server.loaded.module("sglang.srt.layers.radix_linear_attention").RadixLinearAttention(
            layer_id=LAYER,
            num_q_heads=heads[0],
            num_k_heads=heads[1],
            num_v_heads=heads[2],
            head_q_dim=query // heads[0],
            head_k_dim=key // heads[1],
            head_v_dim=value // heads[2],
            activation="silu" if weights.get("activated", True) else None,
        )
        if kind.convolves:
            self._layer.conv_weights, self._layer.bias = weights["weight"], weights["bias"]
            self._layer.A_log, self._layer.dt_bias = torch.zeros(1), torch.zeros(key)
        else:
            self._layer.conv_weights = torch.zeros(query + key + value, OTHER_WIDTH, dtype=case.dtype.torch_dtype)
            self._layer.A_log, self._layer.dt_bias = weights["A_log"], weights["dt_bias"]

    def inputs(self, contents: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the inputs: of a convolution's layer, with gates of zeros."""
        if self._kind.convolves:
            mixed = contents["x"]
            b = mixed.new_zeros(len(mixed), 1)
            a = mixed.new_zeros(len(mixed), self._key) if self._kind.decays_by_channel else b
        else:
            mixed = torch.cat([contents[name].flatten(1) for name in ("query", "key", "value")], dim=-1)
            a, b = contents["a"], contents["b"]
        if self._kind.decays_by_channel:
            # As Kimi Linear's layer passes them (models/kimi_linear.py).
            a, b = a.flatten(1).unsqueeze(0), b.unsqueeze(0)
        return {"mixed_qkv": mixed, "a": a, "b": b}

    def forward(self, batch: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Run the layer through the hybrid backend."""
        out: torch.Tensor = self._layer(batch, **inputs)
        return out.reshape(len(inputs["mixed_qkv"]), *out.shape[-2:])


def layer_of(
    server: StateServer, weights: Mapping[str, Any], states: torch.Tensor, slots: int
) -> tuple[ServedLayer, StateKernels]:
    """Return the layer of a server, and the kernels that it calls on `states`, the first `slots` of them requests'."""
    if server.kind.mixes:
        return MixerLayer(server, weights), MambaKernels(server.kind, states, slots)
    return RadixLayer(server, weights), StateKernels(server.kind, states, slots)
