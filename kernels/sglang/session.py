"""A case on a release: each step becomes the sequence of calls that the release's own workers make."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Bench, Output, Unsupported
from attnfuzz.kernels.planning.queries import cached_scales, draw_queries, packed_rows, place_sinks
from attnfuzz.kernels.releases.answers import ASKED
from attnfuzz.kernels.releases.entry_points_below import Below, KernelsBelow, below
from attnfuzz.kernels.releases.rejection import rejections_of
from attnfuzz.kernels.sglang.batch import count_tokens_of_ranks, forward_batch, mode_of, new_keys, pad
from attnfuzz.kernels.sglang.drafts import DraftDecodes
from attnfuzz.kernels.sglang.graphs import ServedGraphs
from attnfuzz.kernels.sglang.layer import Inputs
from attnfuzz.kernels.sglang.loader import Loaded
from attnfuzz.kernels.sglang.orders import Order, Preparation, WorkerKind, orders_of
from attnfuzz.kernels.sglang.projected import ProjectedAttention
from attnfuzz.kernels.sglang.runner import Server
from attnfuzz.kernels.sglang.stand_ins import replace_calls
from attnfuzz.kernels.sglang.trees import topk_of
from attnfuzz.kernels.sglang.window_pool import POOLS
from attnfuzz.reference.case import Case, Launch, Mode, Step, Tombstone

_WORKERS = {Mode.DRAFT_EXTEND: WorkerKind.SPEC_V1, Mode.DRAFT_EXTEND_V2: WorkerKind.SPEC_V2}
"""The worker that runs each kind of draft extend."""

_OF_DRAFTS = frozenset({Mode.TARGET_VERIFY, *_WORKERS})

_OF_DRAFT_MODEL = frozenset({Mode.DRAFT_DECODE, *_WORKERS})

_FEWEST_DRAFTS = 2
"""Minimum number of draft tokens: with topk 1, which the TRT-LLM backends need, it is steps + 1 (0.5.9:
server_args.py:2450)."""


class SglangSession(ABC):
    """A session on an attention backend of a release. Subclasses define how a model calls it.

    Each model that a server runs has its own instance, which keeps its metadata between steps: the target of a server
    with or without speculation, and the draft model of either worker. Outputs are judged by the keys that the case
    defines, not by the contents of the release's pool, so a wrong KV write is detected.
    """

    def __init__(self, loaded: Loaded, kernels: KernelsBelow, case: Case, bench: Bench) -> None:
        if any(step.mode in _OF_DRAFTS and step.tokens_per_request < _FEWEST_DRAFTS for step in case.steps):
            raise Unsupported("SGLang's servers have two draft tokens or more, or none")
        if case.geometry.attention_chunk and any(step.mode in _OF_DRAFT_MODEL for step in case.steps):
            raise Unsupported("the draft models of SGLang have no chunks of attention")
        drafting = any(step.mode is Mode.DRAFT_DECODE for step in case.steps)
        if drafting and len({step.drafts for step in case.steps} - {0}) > 1:
            raise Unsupported("a server drafts the same number of tokens in all steps")
        if drafting and case.pages.tombstone is not Tombstone.NONE:
            raise Unsupported("decodes of a draft model on a pool of windows are planned with the slots of all steps")
        if case.pages.tombstone is not Tombstone.NONE and not loaded.has(POOLS):
            raise Unsupported(f"a pool of windows, as the tree has no {POOLS}")
        if drafting and topk_of(case) > 1:
            raise Unsupported("decodes of a draft model for a tree have several tokens of each request")
        self._loaded, self._kernels, self._case, self._bench = loaded, kernels, case, bench
        self._orders = orders_of(loaded.release.version)
        self._backends: dict[Mode, Any] = {}
        self._draft_model: DraftDecodes | None = None
        with self._running():
            self._server = self._make_server()
        self._sinks = place_sinks(case, bench)
        self._graphs = self._make_graphs()

    def _make_server(self) -> Server:
        """Return the server of the case."""
        return Server(self._loaded, self._case, self._bench)

    def _make_graphs(self) -> ServedGraphs:
        """Return the graphs of the server."""
        return ServedGraphs(self._server, self._orders.planner)

    def _build(self, mode: Mode) -> Any:
        """Create an instance of the release's backend for the model that runs a mode."""
        kind, runner = self._loaded.kind, self._server.model_runner
        if kind.parts is None or mode in _OF_DRAFT_MODEL:
            return self._serving(mode).backend(runner)
        # 0.5.9: model_executor/model_runner.py:1760, in this order.
        decode, prefill = (self._serving(served).backend(runner) for served in (Mode.DECODE, Mode.EXTEND))
        return self._loaded.backend(runner, prefill_backend=prefill, decode_backend=decode)

    def _serving(self, mode: Mode) -> Loaded:
        """Return the release with the kind of backend that runs a mode."""
        return replace(self._loaded, kind=self._server.kind_serving(mode))

    def _build_for_drafts(self, steps: int) -> Any:
        """Create the release's backend for the decodes of a draft model that drafts `steps` tokens."""
        serving = self._serving(Mode.DRAFT_DECODE)
        if self._case.geometry.window_left >= 0 and not serving.kind.draft_windows:
            raise Unsupported("the release asserts that a draft model has no window")
        return serving.drafts(self._server.model_runner, 1, steps)

    @abstractmethod
    def _attend(self, backend: Any, batch: Any, inputs: Inputs) -> torch.Tensor:
        """Run a model's attention layer. Returns out [rows, q_heads, head_dim_vo]."""

    def _finish(self, step: Step, inputs: Inputs, out: torch.Tensor) -> Output:
        """Return the output of a step that ran on `inputs`."""
        return self._output(step, out, inputs.query)

    def _output(self, step: Step, out: torch.Tensor, queries: torch.Tensor) -> Output:
        return Output(
            out=out,
            lse=None,
            attended=self._server.pool.tokens.attended(step, queries, packed_rows(step)),
            sinks=self._sinks,
            roundings=self._kernels.roundings + self._merges(step),
            **cached_scales(self._case),
        )

    def _merges(self, step: Step) -> bool:
        """Return whether the outputs of a step are merged from rounded ones."""
        kind = self._server.kind_serving(step.mode)
        cascade = kind.cascades and step.mode is Mode.TARGET_VERIFY and topk_of(self._case) > 1
        return cascade or step.mode in kind.merged

    def forward(self, index: int) -> Output | None:
        """Run one step; None for a capture."""
        with rejections_of(self._loaded.release), self._running():
            output = self._run(index, self._case.steps[index])
        ASKED.check()
        return output

    def _running(self) -> AbstractContextManager[Below]:
        """Return the context for code of the release."""
        replace_calls()
        return below(self._loaded.release.flashinfer, self._bench, self._kernels)

    def _run(self, index: int, step: Step) -> Output | None:
        if step.mode is Mode.DRAFT_DECODE:
            return self._draft(index, step)
        backend = self._backend(step.mode)
        with self._server.forwarding():
            return self._with(backend, index, step)

    def _with(self, backend: Any, index: int, step: Step) -> Output | None:
        if step.launch is Launch.CAPTURE:
            self._graphs.capture(backend, index, self._attend)
            return None
        self._server.prepare_step(step)
        batch = forward_batch(self._server, index)
        if step.launch is Launch.REPLAY:
            self._bench.launcher.reached_by(self._orders.graphs[step.mode].words())
            inputs = self._inputs(index, step.padded_tokens, batch)
            static, out = self._graphs.replay(backend, batch, step, inputs)
            return self._finish(step, static, out)
        return self._eager(index, backend, batch)

    def _draft(self, index: int, step: Step) -> Output:
        if self._draft_model is None:
            backends = self._build_for_drafts(step.tokens_per_request + 1)
            self._draft_model = DraftDecodes(self._server, backends)
        self._server.prepare_step(step)
        self._bench.launcher.reached_by(self._order(step).words(padded=step.padded))
        out, queries = self._draft_model.run(index, self._attend)
        return self._output(step, out, queries)

    def _eager(self, index: int, backend: Any, batch: Any) -> Output:
        step = self._case.steps[index]
        order = self._order(step)
        self._bench.launcher.reached_by(order.words(padded=step.padded))
        if step.padded:
            count_tokens_of_ranks(self._server, batch, step)
        for event, _ in order.events:
            if event is Preparation.PLAN:
                backend.init_forward_metadata(batch)
            elif step.padded:
                pad(self._server, batch)
        inputs = self._inputs(index, batch.input_ids.shape[0], batch)
        out = self._attend(backend, batch, inputs)
        return self._finish(step, inputs, out)

    def _order(self, step: Step) -> Order:
        """Return the order of an eager step. If a verify has two, the worker of the case's draft extends decides."""
        orders = self._orders.eager[step.mode]
        workers = {_WORKERS[each.mode] for each in self._case.steps if each.mode in _WORKERS}
        fitting = [order for order in orders if order.worker in workers]
        return fitting[0] if len(fitting) == 1 else orders[self._case.seed % len(orders)]

    def _backend(self, mode: Mode) -> Any:
        """Return the instance that serves a mode."""
        if not mode.speculative:
            verifies = any(step.mode is Mode.TARGET_VERIFY for step in self._case.steps)
            mode = Mode.TARGET_VERIFY if verifies else Mode.DECODE
        if mode not in self._backends:
            self._backends[mode] = self._build(mode)
        # Padding and batches look up the backend in the runner.
        self._server.model_runner.attn_backend = self._backends[mode]
        return self._backends[mode]

    def _inputs(self, index: int, rows: int, batch: Any) -> Inputs:
        """Return the inputs of step `index` with `rows` rows, for the model's forward method of `batch`."""
        step = self._case.steps[index]
        queries = draw_queries(self._case, index, rows, self._case.geometry.head_dim_qk)
        return Inputs.place(self._case, self._bench, queries, new_keys(self._server, step, rows))


class SglangMhaSession(SglangSession):
    """Attention to keys and values in the cache, with sinks as in a GPT-OSS layer."""

    def _attend(self, backend: Any, batch: Any, inputs: Inputs) -> torch.Tensor:
        geometry = self._case.geometry
        sinks = {} if self._sinks is None else {"sinks": self._sinks}
        out: torch.Tensor = backend.forward(
            inputs.query.flatten(1), inputs.key, inputs.value, self._server.layer, batch, save_kv_cache=True, **sinks
        )
        return out.view(-1, geometry.q_heads, geometry.head_dim_vo)


class SglangMlaSession(SglangSession):
    """Latent attention as DeepSeek's layers call it (0.5.9: models/deepseek_v2.py, forward_absorb_core)."""

    def __init__(self, loaded: Loaded, kernels: KernelsBelow, case: Case, bench: Bench) -> None:
        super().__init__(loaded, kernels, case, bench)
        latent = case.geometry.latent
        assert latent is not None
        self._latent = latent
        self._projected = ProjectedAttention(self._server)

    def _inputs(self, index: int, rows: int, batch: Any) -> Inputs:
        absorbed = self._case.steps[index].mode.speculative or self._projected.absorbs(batch)
        return super()._inputs(index, rows, batch) if absorbed else self._projected.inputs(index, rows)

    def _attend(self, backend: Any, batch: Any, inputs: Inputs) -> torch.Tensor:
        geometry, latent = self._case.geometry, self._latent
        if inputs.value is not None:
            return self._projected.attend(backend, batch, inputs)
        q_nope, q_rope = inputs.query.split([latent.rank, latent.rope], dim=-1)
        k_nope, k_rope = inputs.key.split([latent.rank, latent.rope], dim=-1)
        whole = self._server.kind_serving(mode_of(batch)).whole_latents
        query, key = (inputs.query, inputs.key) if whole else (q_nope, k_nope)
        rotated = {} if whole else {"q_rope": q_rope, "k_rope": k_rope}
        out: torch.Tensor = backend.forward(
            query, key, k_nope, self._server.layer, batch, save_kv_cache=True, **rotated
        )
        return out.view(-1, geometry.q_heads, latent.rank)

    def _finish(self, step: Step, inputs: Inputs, out: torch.Tensor) -> Output:
        projected = inputs.value is not None
        return self._projected.output(step, inputs, out) if projected else super()._finish(step, inputs, out)
