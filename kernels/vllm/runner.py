"""A release's own GPUModelRunner, with a model of one layer: it prepares the steps of a case and pads them.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import torch

from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.planning.queries import softmax_scale
from attnfuzz.kernels.releases.answers import ServerMock
from attnfuzz.kernels.vllm.config import ServerLimits, graph_size, server_config
from attnfuzz.kernels.vllm.model import LAYER, Model
from attnfuzz.kernels.vllm.quantisation import Quantisation
from attnfuzz.kernels.vllm.schedule import ScheduledSteps
from attnfuzz.kernels.vllm.server import VllmServer
from attnfuzz.reference.case import Launch, Request, Step

RUNNER: Final = "vllm.v1.worker.gpu_model_runner"
"""The module of the model runner."""

_WHERE: Final = "model runner (v1/worker/gpu_model_runner.py)"

WORDS: Final = {
    Launch.EAGER: f"{_WHERE}: planned for the tokens of the batch, run on rows that data parallelism may pad",
    Launch.CAPTURE: f"{_WHERE}: captured on a dummy run of the graph's size",
    Launch.REPLAY: f"{_WHERE}: padded to the graph's size, planned, replayed; cudagraph_mode FULL_AND_PIECEWISE",
}
"""A server's path to each launch."""


class _NothingToAwait:
    """A stream or an event on a machine without a GPU: all work is finished when a call returns."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def record(self, *_: object) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""

    def wait_stream(self, _: object) -> None:
        """Do nothing."""


@contextmanager
def machine(server: VllmServer) -> Iterator[None]:
    """Simulate a process with the GPU of the server, and with this rank alone in its groups."""
    loaded = server.loaded
    state = loaded.module("vllm.distributed.parallel_state")
    alone = ServerMock(
        "group",
        is_first_rank=True,
        is_last_rank=True,
        world_size=1,
        rank_in_group=0,
        cpu_group=None,
        device_group=None,
        device=server.bench.device,
    )
    with (
        mock.patch.multiple(state, _PP=alone, _TP=alone, _DP=alone),
        nullcontext() if loaded.hopper else _claimed(loaded),
    ):
        yield


@contextmanager
def _claimed(loaded: Any) -> Iterator[None]:
    """Simulate a GPU in a process without one, for code that queries torch."""
    with (
        mock.patch.object(torch, "Event", _NothingToAwait),
        mock.patch.object(torch.cuda, "Event", _NothingToAwait),
        mock.patch.object(torch.cuda, "Stream", _NothingToAwait),
        mock.patch.object(torch.cuda, "current_stream", _NothingToAwait),
        mock.patch.object(torch.cuda, "stream", nullcontext),
        # Parameters of Triton's kernels depend on it (v1/attention/ops/triton_reshape_and_cache_flash.py:345).
        mock.patch.object(torch.cuda, "get_device_capability", return_value=loaded.kind.gpu),
    ):
        yield


def _init(layer: Any) -> None:
    """Initialize a layer without the parameters of its class."""
    if isinstance(layer, torch.nn.Module):
        torch.nn.Module.__init__(layer)


class ModelRunner:
    """The release's model runner on a server with `drafts` draft tokens per request, 0 for none."""

    model_type = Model
    runner = RUNNER, "GPUModelRunner"
    # Metadata builders look up the windows of layers of this class (v1/attention/backends/flash_attn.py:578).
    layer_base = "vllm.model_executor.layers.attention", "Attention"

    def __init__(self, server: VllmServer, drafts: int) -> None:
        self._server, self._drafts = server, drafts
        self._quantisation = Quantisation.of(server.case)
        self._limits = self._set_limits()
        self._config = self._make_config()
        self._other_rank = (0, 0)
        self._begun = False
        self._layers = self._config.compilation_config.static_forward_context
        with self._running():
            self._layer = self._layers[LAYER] = self._make_layer()
            self.model = self._make_model()
            self._runner = self._make_runner()
        self._schedule = ScheduledSteps(server.loaded, server.case, server.pool, self._runner)

    def _set_limits(self) -> ServerLimits:
        return ServerLimits.of(self._server.case, self._drafts)

    def _make_config(self) -> Any:
        return server_config(self._server.loaded, self._server.case, self._drafts, self._limits)

    def _make_model(self) -> Model:
        server = self._server
        return self.model_type(server.loaded, server.case, server.bench, server.pool, self._layer)

    def capture(self, index: int, step: Step) -> None:
        """Capture the graph of a step's size on a dummy run, as at a server's start (capture_model)."""
        modes = self._server.loaded.module("vllm.config.compilation").CUDAGraphMode
        if self._config.compilation_config.cudagraph_mode.decode_mode() is not modes.FULL:
            raise Unsupported("the release captures no full graph of such decodes on this GPU")
        self.model.begin(index)
        self.model.capturing = True
        try:
            with self._running(step):
                self._call(
                    "_dummy_run",
                    step.padded_tokens,
                    cudagraph_runtime_mode=modes.FULL,
                    uniform_decode=True,
                    allow_microbatching=False,
                    skip_eplb=True,
                    is_graph_capturing=True,
                )
        finally:
            self.model.capturing = False

    def run(self, index: int, requests: Sequence[Request]) -> tuple[torch.Tensor, list[int]]:
        """Run a step with these requests. Returns the output's rows, and the first row of each request of the step."""
        step = self._server.case.steps[index]
        self.model.begin(index)
        with self._running(step):
            self._meet_earlier_requests()
            self._be_idle(step)
            first_rows = self._execute(index, step, requests) if requests else [0] * len(step.requests)
        out = self.model.out
        assert out is not None
        return out, first_rows

    def _execute(self, index: int, step: Step, requests: Sequence[Request]) -> list[int]:
        """Run a step. Returns the first row of each of its requests."""
        ordered = self._schedule.order(index, requests)
        self._call("execute_model", ordered)
        # Nothing is sampled.
        self._runner.execute_model_state = None
        return self._first_rows(step, ordered)

    def _be_idle(self, step: Step) -> None:
        """Run a dummy batch, as an idle rank does while another one runs `step`.

        See v1/worker/gpu_worker.py, execute_dummy_batch. It must not change the pool.
        """
        self._server.bench.launcher.reached_by(f"{_WHERE}: a dummy batch, on a rank without requests")
        self._call("_dummy_run", self._runner.uniform_decode_query_len, uniform_decode=True)
        self._server.bench.launcher.reached_by(WORDS[step.launch])

    def again(self) -> torch.Tensor:
        """Run the last step's layer again without writes: all slots are -1. Returns the output's rows."""
        with self._running():
            self._runner.input_batch.block_table[0].slot_mapping.gpu.fill_(-1)
            return self.model.again()

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method without its decorator inference_mode, in which operations cannot be recorded."""
        return inspect.unwrap(getattr(type(self._runner), name))(self._runner, *args, **kwargs)

    def _first_rows(self, step: Step, ordered: Any) -> list[int]:
        """Return the first row of each request, in the order of the runner's batch; 0 for one without tokens."""
        begins, row = {}, 0
        for name in self._runner.input_batch.req_ids:
            begins[name] = row
            row += ordered.num_scheduled_tokens[name]
        return [begins[self._schedule.name(each.slot)] if each.q_len else 0 for each in step.requests]

    def _meet_earlier_requests(self) -> None:
        """Schedule requests from before the case, once, which leave stale data in the batch and the block tables."""
        if self._begun:
            return
        self._begun = True
        ordered = self._schedule.earlier(self._limits.requests)
        if ordered is None:
            return
        runner, requests = self._runner, self._limits.requests
        runner._update_states(ordered)  # noqa: SLF001 - there is no other way to it
        runner.input_batch.block_table.commit_block_table(requests)
        # Stale slots, as of a largest step whose tokens were the last ones of their blocks.
        table = runner.input_batch.block_table[0]
        last = table.block_table.gpu[torch.arange(self._limits.tokens) % requests, 0].long()
        table.slot_mapping.gpu.copy_(last * self._server.pool.paged.page_size + self._server.pool.paged.page_size - 1)

    @contextmanager
    def _running(self, step: Step | None = None) -> Iterator[None]:
        """Set the configuration and the groups of ranks that code of the release needs."""
        loaded = self._server.loaded
        self._other_rank = (0, 0) if step is None else self._votes(step)
        ranks = SimpleNamespace(all_reduce=self._add_other_rank)
        with (
            self._machine(),
            mock.patch.object(loaded.module("vllm.config.vllm"), "_current_vllm_config", self._config),
            mock.patch.object(loaded.module("vllm.v1.worker.dp_utils"), "dist", ranks),
        ):
            yield

    def _machine(self) -> AbstractContextManager[None]:
        """Return the context of a process with a GPU and groups of ranks."""
        return machine(self._server)

    def _votes(self, step: Step) -> tuple[int, int]:
        """Return the other rank's padded tokens and graph mode. All ranks use the maximum tokens and minimum mode."""
        modes = self._server.loaded.module("vllm.config.compilation").CUDAGraphMode
        mode = modes.PIECEWISE if step.launch is Launch.EAGER else modes.FULL
        return graph_size(step, self._drafts), mode.value

    def _add_other_rank(self, tensor: torch.Tensor, group: Any = None) -> None:
        """Add the other rank's tokens, padded tokens, microbatching and graph (v1/worker/dp_utils.py, _run_ar)."""
        del group
        tokens, mode = self._other_rank
        tensor[:, 1] += torch.tensor([tokens, tokens, 0, mode], dtype=tensor.dtype)

    def _make_runner(self) -> Any:
        server = self._server
        base = self._class(self.runner)
        # The pool exists already.
        own = {"initialize_kv_cache_tensors": lambda *_, **__: {}, **self._replaced()}
        runner = type("Runner", (base,), own)(self._config, server.bench.device)
        runner.model = self.model
        self._prepare(runner)
        runner.initialize_kv_cache(self._pool_config(server.pool.paged.total_pages))
        # Before 0.19.0, lengths have a buffer with both parts (0.18.1: v1/worker/gpu_model_runner.py:661).
        apart = isinstance(runner.seq_lens, torch.Tensor)
        lengths = runner.optimistic_seq_lens_cpu if apart else runner.seq_lens.cpu
        self.model.keep_on_host((runner.query_start_loc.cpu, lengths))
        return runner

    def _class(self, name: tuple[str, str]) -> Any:
        """Return a class of the release, by its module and name."""
        module, own = name
        return getattr(self._server.loaded.module(module), own)

    def _prepare(self, runner: Any) -> None:
        """Complete a runner that has no KV cache yet."""

    def _replaced(self) -> dict[str, Any]:
        """Return further methods of the release's runner that are replaced."""
        return {}

    def _pool_config(self, blocks: int) -> Any:
        """Return the KVCacheConfig of a pool of `blocks`."""
        interface = self._server.loaded.module("vllm.v1.kv_cache_interface")
        group = interface.KVCacheGroupSpec([*self._layers], self._spec())
        return interface.KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[group])

    def _make_layer(self) -> Any:
        return self._layer_with(self._window)

    def _layer_with(self, window: int | None) -> Any:
        """Return a layer with the attributes of a checkpoint without scales (layers/attention/attention.py)."""
        loaded, geometry = self._server.loaded, self._server.case.geometry
        answers = {
            "get_attn_backend": lambda _: loaded.part("Backend"),
            "get_kv_cache_spec": lambda *_: self._spec(),
        }
        layer = type("Layer", (self._class(self.layer_base),), {**answers, "__init__": _init})()
        layer.num_heads, layer.impl = geometry.q_heads, self._impl(window)
        layer.attn_type = "decoder"
        layer.impl.process_weights_after_loading(geometry.dtype.torch_dtype)
        for name, value in self._quantisation.layer(self._server.case, self._server.bench.device).items():
            setattr(layer, name, value)
        return layer

    def _impl(self, window: int | None) -> Any:
        geometry = self._server.case.geometry
        return self._server.loaded.part("Impl")(
            num_heads=geometry.q_heads,
            head_size=geometry.head_dim_qk,
            scale=softmax_scale(self._server.case),
            num_kv_heads=geometry.kv_heads,
            alibi_slopes=None,
            sliding_window=window,
            kv_cache_dtype=self._quantisation.cache_dtype,
            logits_soft_cap=geometry.soft_cap or None,
            sinks=self._server.sinks,
        )

    @property
    def _window(self) -> int | None:
        """The sliding window, in which vLLM counts the query's own key (FlashInferImpl.__init__)."""
        left = self._server.case.geometry.window_left
        return None if left < 0 else left + 1

    def _spec(self) -> Any:
        """Return the layer's KVCacheSpec, as if all layer groups were managed alike (disable_hybrid_kv_...)."""
        interface = self._server.loaded.module("vllm.v1.kv_cache_interface")
        return interface.FullAttentionSpec(**self._spec_fields(interface))

    def _spec_fields(self, interface: Any) -> dict[str, Any]:
        geometry = self._server.case.geometry
        mode: dict[str, Any] = {}
        if hasattr(interface, "get_kv_quant_mode"):
            # Since 0.20.0.
            mode["kv_quant_mode"] = interface.get_kv_quant_mode(self._quantisation.cache_dtype)
        return dict(
            block_size=geometry.page_size,
            num_kv_heads=geometry.kv_heads,
            head_size=geometry.head_dim_qk,
            dtype=torch.uint8 if self._quantisation.quantised else geometry.dtype.torch_dtype,
            sliding_window=self._window,
            **mode,
        )
