"""The server of a case of recurrent state: its pool of states, hybrid backend and layer.

A file and line below sglang/srt/ is that of SGLang 0.5.23 unless another version is named.
"""

from collections.abc import Callable
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.answers import ServerMock
from attnfuzz.kernels.sglang.runner import Server
from attnfuzz.kernels.sglang.states.kinds import HYBRID, LinearKind
from attnfuzz.kernels.sglang.states.pool import LAYER, StatePools, part_dims, release_pool
from attnfuzz.reference.case import Case
from attnfuzz.reference.recurrent.case import StateCase

_CHUNK: Final = 64
"""Tokens of a chunk of the kernels for prefills (layers/attention/fla/chunk_delta_h.py, CHUNK_SIZE)."""

_LINEAR_UTILS: Final = "sglang.srt.layers.attention.linear.utils"

_MAMBAISH: Final = (
    "sglang.srt.model_executor.forward_batch_info",
    "sglang.srt.speculative.spec_utils",
)
"""Modules that look up whether the model has layers with states (configs/hybrid_arch.py, mambaish_config)."""


class StateServer(Server):
    """A server whose model has one recurrent layer.

    `linear` is the release's backend of the layer, `backend` the hybrid one around it, whose attention plans nothing.
    """

    def __init__(
        self,
        loaded: Any,
        served: Case,
        bench: Bench,
        case: StateCase,
        kind: LinearKind,
        pools: Callable[[int], StatePools],
    ) -> None:
        self._state_case, self._kind, self._pools = case, kind, pools
        self.model_config_of_states = ServerMock("mambaish_config", mamba_chunk_size=_CHUNK)
        super().__init__(loaded, served, bench)
        for name in _MAMBAISH:
            module = loaded.module(name)
            if hasattr(module, "mambaish_config"):
                module.mambaish_config = lambda _config: self.model_config_of_states
        self.linear = self._linear_backend()
        hybrid = loaded.module(HYBRID).HybridLinearAttnBackend
        self.backend = hybrid(self._full_backend(), self.linear, [])
        self.model_runner.attn_backend = self.backend

    def _request_pool(self, memory_pool: Any, **arguments: Any) -> Any:
        pools = self._pools(arguments["size"])
        return release_pool(memory_pool, self._state_case, self._kind, pools, arguments)

    def _model_runner(self, config: ServerMock, own_rows: Any) -> ServerMock:
        runner: Any = super()._model_runner(config, own_rows)
        runner.mambaish_config = runner.hybrid_gdn_config = runner.mamba2_config = self.model_config_of_states
        if self.loaded.has(_LINEAR_UTILS):
            utils = self.loaded.module(_LINEAR_UTILS)
            if hasattr(utils, "resolve_linear_attn_backends"):
                runner.linear_attn_backends = utils.resolve_linear_attn_backends()
            elif hasattr(utils, "initialize_linear_attn_config"):
                utils.initialize_linear_attn_config(self.args)
        made: ServerMock = runner
        return made

    def _linear_backend(self) -> Any:
        """Return the release's backend of the layer."""
        name = self._kind.module if self.loaded.has(self._kind.module) else HYBRID
        module = self.loaded.module(name)
        made = next(getattr(module, each) for each in self._kind.classes if hasattr(module, each))
        return made(self.model_runner)

    def _full_backend(self) -> Any:
        """Return a backend of the model's layers of attention, none of which runs."""
        parent = self.loaded.module("sglang.srt.layers.attention.base_attn_backend").AttentionBackend

        def nothing(*_: Any, **__: Any) -> None:
            pass

        members = dict.fromkeys(
            (
                "init_forward_metadata",
                "init_cuda_graph_state",
                "init_forward_metadata_capture_cuda_graph",
                "init_forward_metadata_replay_cuda_graph",
                "init_forward_metadata_out_graph",
                "init_forward_metadata_in_graph",
                "__init__",
            ),
            nothing,
        )
        runner = self.model_runner
        return type(
            "AttentionNotRun",
            (parent,),
            {
                **members,
                "token_to_kv_pool": runner.token_to_kv_pool,
                "req_to_token_pool": runner.req_to_token_pool,
                "kv_index_translator": runner.kv_index_translator,
                # As of all backends of attention that servers choose (layers/attention/triton_backend.py).
                "get_cuda_graph_seq_len_fill_value": lambda _: 1,
                "get_cpu_graph_seq_len_fill_value": lambda _: 1,
            },
        )()

    def state_layer(self, weights: dict[str, Any]) -> Any:
        """Return the release's RadixLinearAttention with the weights of a case, by the names of the kernels."""
        case, shape = self._state_case, self._state_case.shape
        query, key, value = part_dims(case, self._kind)
        heads = (1, 1, 1) if self._kind.convolves else (shape.heads, shape.heads, shape.value_heads)
        module = self.loaded.module("sglang.srt.layers.radix_linear_attention")
        layer = module.RadixLinearAttention(
            layer_id=LAYER,
            num_q_heads=heads[0],
            num_k_heads=heads[1],
            num_v_heads=heads[2],
            head_q_dim=query // heads[0],
            head_k_dim=key // heads[1],
            head_v_dim=value // heads[2],
            activation="silu" if weights.get("activated", True) else None,
        )
        if self._kind.convolves:
            layer.conv_weights, layer.bias = weights["weight"], weights["bias"]
        else:
            taps = torch.zeros(query + key + value, 4, dtype=case.dtype.torch_dtype)
            layer.conv_weights, layer.A_log, layer.dt_bias = taps, weights["A_log"], weights["dt_bias"]
        return layer
