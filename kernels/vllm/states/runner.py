"""A release's own GPUModelRunner with a recurrent layer.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

import inspect
from collections.abc import Sequence
from typing import Any, Final

import torch

from attnfuzz.kernels.releases.answers import ServerMock
from attnfuzz.kernels.vllm.config import ServerLimits
from attnfuzz.kernels.vllm.runner import ModelRunner
from attnfuzz.kernels.vllm.schedule import ScheduledSteps
from attnfuzz.kernels.vllm.states.demands import Demands, next_accepted
from attnfuzz.kernels.vllm.states.kinds import StateKind
from attnfuzz.kernels.vllm.states.model import StateModel
from attnfuzz.reference.case import Request, Step
from attnfuzz.reference.recurrent.case import StateCase

_CHUNKS: Final = (8, 64, 256)
"""Tokens of a chunk of Mamba-2's prefills (config/model.py, get_mamba_chunk_size)."""

_BASE: Final = "vllm.model_executor.layers.attention_layer_base"


class _ScheduledLanes(ScheduledSteps):
    """The scheduler's outputs: the case says which requests decode, whatever their number of tokens."""

    def __init__(self, loaded: Any, demands: Demands, pool: Any, runner: Any) -> None:
        super().__init__(loaded, demands.case, pool, runner)
        self._decoding = demands.decoding

    def _decodes(self, index: int, request: Request) -> bool:
        return (index, request.slot) in self._decoding


class StateRunner(ModelRunner):
    """The release's model runner on the server of a case, with its builder of metadata for a kind of layer."""

    model: StateModel
    layer_base = _BASE, "AttentionLayerBase"

    def __init__(self, server: Any, case: StateCase, demands: Demands, kind: StateKind) -> None:
        self._state_case, self._demands, self._kind = case, demands, kind
        self._begin_with: dict[str, int] = {}
        self._ordered: Any = None
        super().__init__(server, case.drafts)
        self._schedule = _ScheduledLanes(server.loaded, demands, server.pool, self._runner)

    def _set_limits(self) -> ServerLimits:
        return self._demands.limits

    def _make_config(self) -> Any:
        """Return the configuration of a server whose model has recurrent layers, with a prefix cache if states move."""
        config = super()._make_config()
        config.additional_config = None
        config.model_config.is_hybrid = True
        config.model_config.get_mamba_chunk_size = lambda: _CHUNKS[self._state_case.seed % len(_CHUNKS)]
        config.cache_config.enable_prefix_caching = self._state_case.move
        config.cache_config.mamba_cache_mode = self._mode
        config.cache_config.replayssm_buffer_len = 0
        # 0.18.1: v1/worker/gpu_model_runner.py:6182
        config.offload_config = ServerMock("offload_config", uva=ServerMock("uva", cpu_offload_gb=0))
        return config

    @property
    def _mode(self) -> str:
        """The server's mamba_cache_mode."""
        return "align" if self._state_case.move else "none"

    def _make_model(self) -> Any:
        server = self._server
        return StateModel(server.loaded, self._demands, server.bench, server.pool, server.session)  # type: ignore[arg-type, attr-defined]

    def capture_all(self) -> None:
        """Capture a graph of each size that decodes can have, as at a server's start (capture_model)."""
        stride = 1 + self._drafts
        for size in self._limits.graphs:
            if size <= self._limits.requests * stride:
                self.capture(0, Step(mode=self._server.case.steps[0].mode, requests=(), padded_tokens=size))

    def run(self, index: int, requests: Sequence[Request]) -> tuple[torch.Tensor, list[int]]:
        """Run a step; one without requests is that of an idle rank. Returns the rows, and the first of each request."""
        step = self._server.case.steps[index]
        self.model.begin(index)
        first_rows: list[int] = []
        with self._running(step):
            self._meet_earlier_requests()
            if requests:
                first_rows = self._execute(index, step, requests)
                self._accept(index)
            else:
                # An empty output ends requests, before the dummy batch (v1/engine/core.py, _process_engine_step).
                self._call("_update_states", self._schedule.order(index, ()))
                self._be_idle(step)
        out = self.model.out
        assert out is not None
        return out, first_rows

    def _accept(self, index: int) -> None:
        """Accept the tokens with which the requests of a step go on, as the sampler does (sample_tokens)."""
        if not self._drafts:
            return
        names = self._runner.input_batch.req_ids
        sampled = torch.full((len(names), 1 + self._drafts), -1, dtype=torch.int32)
        for lane, count in next_accepted(self._state_case, index).items():
            sequence = self._sequence_at(index, lane)
            if sequence is not None:
                sampled[names.index(self._schedule.name(sequence)), :count] = 0
        method = type(self._runner)._update_states_after_model_execute  # noqa: SLF001 - there is no other way to it
        more = len(inspect.signature(method).parameters) - 2
        method(self._runner, sampled, *(self._ordered,) * more)

    def _sequence_at(self, index: int, lane: int) -> int | None:
        of_lane = (each.slot for each in self._server.case.steps[index].requests)
        return next((slot for slot in of_lane if self._demands.lanes[slot] == lane), None)

    def _replaced(self) -> dict[str, Any]:
        """Let requests that begin in the case with accepted drafts have had a step before it."""
        base = self._class(self.runner)

        def update(runner: Any, ordered: Any) -> Any:
            before = set(runner.input_batch.req_id_to_index)
            done = inspect.unwrap(base._update_states)(runner, ordered)  # noqa: SLF001
            for name, row in runner.input_batch.req_id_to_index.items():
                if name not in before and name in self._begin_with:
                    runner.input_batch.num_accepted_tokens_cpu[row] = self._begin_with.pop(name)
            return done

        return {"_update_states": update}

    def _execute(self, index: int, step: Step, requests: Sequence[Request]) -> list[int]:
        ordered = self._ordered = self._schedule.order(index, requests)
        self._begin_with = self._first_accepted(index)
        self._call("execute_model", ordered)
        # Nothing is sampled.
        self._runner.execute_model_state = None
        return self._first_rows(step, ordered)

    def _first_accepted(self, index: int) -> dict[str, int]:
        """Return the accepted tokens of requests of a step that none of the case was before."""
        seen = {row.lane for step in self._state_case.steps[:index] for row in step.rows if row.tokens}
        found = {}
        for row in self._state_case.steps[index].rows:
            sequence = self._sequence_at(index, row.lane)
            if row.tokens and row.lane not in seen and sequence is not None:
                found[self._schedule.name(sequence)] = row.accepted
        return found

    def _votes(self, step: Step) -> tuple[int, int]:
        """Return the other rank's padded tokens and graph mode. It forbids full graphs of decodes that are eager.

        Beside any other step, it runs one if its requests are few enough.
        """
        tokens, mode = super()._votes(step)
        full = self._server.loaded.module("vllm.config.compilation").CUDAGraphMode.FULL.value
        decodes = step.tokens_per_request and step.requests
        fits = tokens <= self._limits.requests * (1 + self._drafts)
        return tokens, full if fits and not decodes else mode

    def _make_layer(self) -> Any:
        loaded = self._server.loaded
        backend = getattr(loaded.module(self._kind.module), f"{self._kind.classes}Backend")
        answers = {"get_attn_backend": lambda _: backend, "get_kv_cache_spec": lambda *_: self._spec()}
        layer = type("Layer", (self._class(self.layer_base),), {**answers, "__init__": lambda _: None})()
        states = [self._server.session.layer.state]  # type: ignore[attr-defined]
        copies = loaded.module("vllm.v1.worker.mamba_utils")
        # 0.18.1 has such a list for each virtual engine (v1/worker/mamba_utils.py:113).
        nested = "kv_cache[0]" in inspect.getsource(copies.collect_mamba_copy_meta)
        layer.kv_cache = [states] if nested else states
        return layer

    def _spec(self) -> Any:
        """Return the layer's KVCacheSpec: a state, and one for each draft."""
        interface = self._server.loaded.module("vllm.v1.kv_cache_interface")
        return interface.MambaSpec(
            block_size=self._demands.block_size,
            mamba_cache_mode=self._mode,
            shapes=((1,),),
            dtypes=(torch.float32,),
            num_speculative_blocks=self._drafts,
        )
