"""A case on a release: each step is planned by its metadata builder and run by its attention layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from attnfuzz.kernels.backend import Bench, Output, Unsupported
from attnfuzz.kernels.lengths import running_sum
from attnfuzz.kernels.queries import cached_scales, draw_queries, place_queries
from attnfuzz.kernels.releases.answers import ASKED
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow, below
from attnfuzz.kernels.releases.recording import Recording, record
from attnfuzz.kernels.releases.rejection import is_rejection
from attnfuzz.kernels.vllm.batch import Rows, Shape, common_metadata
from attnfuzz.kernels.vllm.server import ModelRunner, VllmServer
from attnfuzz.reference.case import Case, Launch, Mode, Step

_OF_DRAFTS = frozenset({Mode.TARGET_VERIFY, Mode.DRAFT_EXTEND})


_RUNNER: Final = "model runner (v1/worker/gpu_model_runner.py)"
_WORDS: Final = {
    Launch.EAGER: f"{_RUNNER}: planned for the tokens of the batch, run on rows that data parallelism may pad",
    Launch.CAPTURE: f"{_RUNNER}: captured on a dummy run of the graph's size",
    Launch.REPLAY: f"{_RUNNER}: padded to the graph's size, planned, replayed; cudagraph_mode FULL_AND_PIECEWISE",
}
"""A server's path to each launch."""


@dataclass(frozen=True)
class LayerInputs:
    """The inputs of a forward: query [rows, q_heads, dim], key and value [rows, kv_heads, dim]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    def fill(self, other: "LayerInputs") -> None:
        """Copy other inputs into these, which a graph reads."""
        for mine, new in ((self.query, other.query), (self.key, other.key), (self.value, other.value)):
            mine.copy_(new)


@dataclass(frozen=True)
class _Captured:
    graph: Recording
    inputs: LayerInputs
    out: torch.Tensor


class VllmSession:
    """A session on a release's FlashInfer backend.

    Steps with drafts run on a model runner with speculation, captured decodes on one without, and all others on that of
    the case: with speculation if any of its steps has drafts. Requests attend to the keys that the case defines, not to
    the contents of the pool: a wrong KV write shows.
    """

    def __init__(self, loaded: Any, kernels: KernelsBelow, case: Case, bench: Bench) -> None:
        strides = {step.tokens_per_request for step in case.steps if step.mode in _OF_DRAFTS}
        if len(strides) > 1 or 1 in strides:
            raise Unsupported("a server drafts the same number of tokens in all steps, at least one")
        self._drafts = strides.pop() - 1 if strides else 0
        self._loaded, self._kernels, self._case, self._bench = loaded, kernels, case, bench
        self._runners: dict[int, ModelRunner] = {}
        self._captured: dict[tuple[Mode, int], _Captured] = {}
        with self._running():
            self._server = VllmServer(loaded, case, bench)

    def forward(self, index: int) -> Output | None:
        """Run one step; None for a capture."""
        step = self._case.steps[index]
        try:
            with self._running():
                runner = self._runner(step)
                self._bench.launcher.reached_by(_WORDS[step.launch])
                with runner.configured():
                    output = self._run(runner, index, step)
        except (ValueError, NotImplementedError) as error:
            if is_rejection(self._loaded.release, error):
                raise Unsupported(f"the release says: {error}") from error
            raise
        ASKED.check()
        return output

    @contextmanager
    def _running(self) -> Iterator[None]:
        """The context for any code of the release."""
        with below(self._loaded.release.flashinfer, self._bench, self._kernels), torch.inference_mode(mode=False):
            yield

    def _runner(self, step: Step) -> ModelRunner:
        captured = {(each.mode, each.launch) for each in self._case.steps} & {(Mode.DECODE, Launch.CAPTURE)}
        drafts = 0 if step.mode is Mode.DECODE and captured else self._drafts
        if drafts not in self._runners:
            self._runners[drafts] = ModelRunner(self._server, drafts)
        return self._runners[drafts]

    def _run(self, runner: ModelRunner, index: int, step: Step) -> Output | None:
        if step.launch is Launch.CAPTURE:
            self._capture(runner, index, step)
            return None
        self._server.pool.write_before(step)
        requests = [request for request in step.requests if request.q_len]
        if not requests:
            raise Unsupported("no server runs a step without a token")
        rows = Rows(self._loaded, requests, runner.threshold)
        ordered = [requests[place] for place in rows.order]
        begins = {
            each.slot: begin for each, begin in zip(ordered, running_sum(each.q_len for each in ordered), strict=False)
        }
        first_rows = [begins.get(request.slot, 0) for request in step.requests]
        query = draw_queries(self._case, index, step.padded_tokens, self._case.geometry.head_dim_qk, first_rows)
        inputs = self._inputs(query, self._server.pool.new_tokens(ordered, step.padded_tokens))
        replayed = step.launch is Launch.REPLAY
        runner.buffers.fill(ordered, step.padded_batch if replayed else len(ordered), step.padded_tokens)
        shape = Shape.of(step, ordered, padded=replayed)
        metadata = runner.builder.build(0, common_metadata(self._loaded, runner.buffers, rows, shape))
        if replayed:
            captured = self._captured[step.mode, step.padded_tokens]
            captured.inputs.fill(inputs)
            captured.graph.replay()
            inputs, out = captured.inputs, captured.out
        else:
            out = self._attend(runner, inputs, metadata)
        return self._output(step, inputs, out, first_rows)

    def _capture(self, runner: ModelRunner, index: int, step: Step) -> None:
        """Capture the graph of a step's size, on a dummy run (0.26.0: v1/worker/gpu_model_runner.py:5767)."""
        geometry, rows = self._case.geometry, step.padded_tokens
        query = torch.zeros((rows, geometry.q_heads, geometry.head_dim_qk), dtype=geometry.dtype.torch_dtype)
        inputs = self._inputs(query, self._server.pool.new_tokens((), rows))
        runner.buffers.fill_dummy(step.padded_batch, step.tokens_per_request)
        shape = Shape.of_capture(step, self._server.max_model_len)
        metadata = runner.builder.build_for_cudagraph_capture(
            common_metadata(self._loaded, runner.buffers, None, shape)
        )
        with record(self._bench, host=runner.buffers.host) as graph:
            out = self._attend(runner, inputs, metadata)
        self._captured[step.mode, rows] = _Captured(graph, inputs, out)

    def _inputs(self, query: torch.Tensor, tokens: tuple[torch.Tensor, torch.Tensor]) -> LayerInputs:
        memory = self._bench.memory
        return LayerInputs(
            place_queries(self._case, self._bench, query),
            memory.copy("new_key", tokens[0]),
            memory.copy("new_value", tokens[1]),
        )

    def _attend(self, runner: ModelRunner, inputs: LayerInputs, metadata: Any) -> torch.Tensor:
        """Write the cache and attend as an Attention layer does (0.26.0: layers/attention/attention.py, forward)."""
        geometry, layer, cache = self._case.geometry, runner.layer, self._server.pool.kv_cache
        shape = (inputs.query.shape[0], geometry.q_heads * geometry.head_dim_vo)
        out = torch.empty(shape, dtype=geometry.dtype.torch_dtype).view(-1, geometry.q_heads, geometry.head_dim_vo)
        slots = runner.buffers.slot_mapping[: inputs.query.shape[0]]
        layer.impl.do_kv_cache_update(layer, inputs.key, inputs.value, cache, slots)
        layer.impl.forward(layer, inputs.query, inputs.key, inputs.value, cache, metadata, out)
        return out

    def _output(self, step: Step, inputs: LayerInputs, out: torch.Tensor, first_rows: list[int]) -> Output:
        return Output(
            out=out,
            lse=None,
            attended=self._server.pool.attended(step, inputs.query, first_rows),
            sinks=self._server.sinks,
            roundings=self._kernels.roundings,
            **cached_scales(self._case, self._case.geometry.head_dim_qk),
        )
