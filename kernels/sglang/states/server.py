"""The server of a case of recurrent state: its pool of states, hybrid backend and layer.

A file and line below sglang/srt/ is that of SGLang 0.5.23 unless another version is named.
"""

from collections.abc import Callable
from typing import Any, Final

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.answers import ServerMock
from attnfuzz.kernels.sglang.runner import Server
from attnfuzz.kernels.sglang.states.kinds import HYBRID, LinearKind
from attnfuzz.kernels.sglang.states.pool import StatePools, release_pool
from attnfuzz.reference.case import Case
from attnfuzz.reference.recurrent.case import StateCase

_CHUNK: Final = 64
"""Tokens of a chunk of the kernels for prefills (layers/attention/fla/chunk_delta_h.py, CHUNK_SIZE)."""

_LINEAR_UTILS: Final = "sglang.srt.layers.attention.linear.utils"

_MAMBAISH: Final = (
    HYBRID,
    "sglang.srt.model_executor.forward_batch_info",
    "sglang.srt.speculative.spec_utils",
)
"""Modules that look up whether the model has layers with states (configs/hybrid_arch.py)."""


class StateServer(Server):
    """A server whose model has one recurrent layer.

    `linear` is the release's backend of the layer, `backend` the hybrid one around it, whose attention plans nothing.
    `state_case` and `kind` are the arguments.
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
        self.state_case, self.kind, self._pools = case, kind, pools
        self.model_config_of_states = ServerMock("mambaish_config", mamba_chunk_size=_CHUNK)
        super().__init__(loaded, served, bench)
        for name in _MAMBAISH:
            module = loaded.module(name)
            for each in ("mambaish_config", "mamba2_config"):
                if hasattr(module, each):
                    setattr(module, each, lambda _config: self.model_config_of_states)
        self.linear = self._linear_backend()
        hybrid = loaded.module(HYBRID).HybridLinearAttnBackend
        self.backend = hybrid(self._full_backend(), self.linear, [])
        self.model_runner.attn_backend = self.backend

    def _request_pool(self, memory_pool: Any, **arguments: Any) -> Any:
        pools = self._pools(arguments["size"])
        return release_pool(memory_pool, self.state_case, self.kind, pools, arguments)

    def _model_runner(self, config: ServerMock, own_rows: Any) -> ServerMock:
        runner: Any = super()._model_runner(config, own_rows)
        config.hf_text_config.mamba_chunk_size = _CHUNK
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
        name = self.kind.module if self.loaded.has(self.kind.module) else HYBRID
        module = self.loaded.module(name)
        return getattr(module, self.kind.class_name)(self.model_runner)

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
