"""A case on a release: each step is prepared by its model runner, and run by its attention layer."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Bench, Output, Unsupported, WrittenThenAttended
from attnfuzz.kernels.planning.queries import cached_scales, draw_queries, key_dim
from attnfuzz.kernels.releases.answers import ASKED
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow, code_of
from attnfuzz.kernels.releases.rejection import rejections_of
from attnfuzz.kernels.vllm.config import drafting
from attnfuzz.kernels.vllm.cpu.cpu_pool import CpuPool
from attnfuzz.kernels.vllm.cpu.runner import CpuRunner
from attnfuzz.kernels.vllm.dcp.latents import LatentShardedRunner
from attnfuzz.kernels.vllm.dcp.runner import MERGES, ShardedRunner
from attnfuzz.kernels.vllm.dcp.sharded_pool import ShardedPool
from attnfuzz.kernels.vllm.drafter import DraftingRunner, LatentDraftingRunner, rejected
from attnfuzz.kernels.vllm.mla.latent_pool import LatentPool
from attnfuzz.kernels.vllm.mla.prefills import chunk_capacity, merges, most_requests
from attnfuzz.kernels.vllm.mla.runner import LatentRunner
from attnfuzz.kernels.vllm.pool import VllmPool
from attnfuzz.kernels.vllm.quantisation import Quantisation
from attnfuzz.kernels.vllm.runner import WORDS, ModelRunner
from attnfuzz.kernels.vllm.server import VllmServer
from attnfuzz.reference.case import Case, Launch, Mode, Step

AnyRunner = ModelRunner | ShardedRunner


def drafts_of(case: Case) -> int:
    """Return the number of draft tokens per request of the case's server, 0 for none. Raises Unsupported."""
    strides = {step.drafts for step in case.steps} - {0}
    if len(strides) > 1 or 1 in strides:
        raise Unsupported("a server drafts the same number of tokens in all steps, at least one")
    return strides.pop() - 1 if strides else 0


class VllmSession:
    """A session on a release's FlashInfer backend.

    Steps with drafts run on a model runner with speculation, captured decodes on one without, and all others with
    speculation if any step of the case has drafts. Outputs are judged by the keys that the case defines, not by the
    contents of the pool, so a wrong KV write is detected.
    """

    def __init__(self, loaded: Any, kernels: KernelsBelow, case: Case, bench: Bench) -> None:
        self._drafts = drafts_of(case)
        self._loaded, self._kernels, self._case, self._bench = loaded, kernels, case, bench
        self._running = code_of(loaded.release, bench, kernels)
        self._runners: dict[int, AnyRunner] = {}
        self._without_graph: dict[int, Unsupported] = {}
        with self._running():
            self._server = VllmServer(loaded, case, bench, self._pool_type)

    def forward(self, index: int) -> WrittenThenAttended | None:
        """Run one step; None for a capture."""
        step = self._case.steps[index]
        with rejections_of(self._loaded.release), self._running():
            runner = self._runner(step)
            self._bench.launcher.reached_by(WORDS[step.launch])
            output = self._run(runner, index, step)
        ASKED.check()
        return output

    def _runner(self, step: Step) -> AnyRunner:
        drafts = self._drafts_at(step)
        if drafts not in self._runners:
            self._runners[drafts] = self._runner_type(drafts)(self._server, drafts)
            self._start(drafts)
        return self._runners[drafts]

    def _drafts_at(self, step: Step) -> int:
        """Return the number of drafts per request on the server that runs a step."""
        captured = {(each.mode, each.launch) for each in self._case.steps} & {(Mode.DECODE, Launch.CAPTURE)}
        return 0 if step.mode is Mode.DECODE and captured else self._drafts

    def _start(self, drafts: int) -> None:
        """Capture a server's graphs before its first request, as servers do: dummy runs change its block tables."""
        for index, step in enumerate(self._case.steps):
            if step.launch is Launch.CAPTURE and self._drafts_at(step) == drafts:
                try:
                    self._runners[drafts].capture(index, step)
                except Unsupported as reason:
                    self._without_graph[index] = reason

    @property
    def _pool_type(self) -> type[VllmPool]:
        if self._loaded.kind.sharded:
            return ShardedPool
        if self._case.geometry.latent:
            return LatentPool
        return CpuPool if self._loaded.kind.on_cpu else VllmPool

    def _runner_type(self, drafts: int) -> type[AnyRunner]:
        """Return the type of the model runner of a server with `drafts` draft tokens per request."""
        latent = self._case.geometry.latent
        if self._loaded.kind.sharded:
            return LatentShardedRunner if latent else ShardedRunner
        if self._loaded.kind.on_cpu:
            return CpuRunner
        types = (LatentRunner, LatentDraftingRunner) if latent else (ModelRunner, DraftingRunner)
        return types[bool(drafts and drafting(self._case))]

    def _merges(self, step: Step) -> int:
        """Return the number of roundings of an output after the kernel's own."""
        of_chunks = 0
        if self._case.geometry.latent:
            prefixes = [each.kv_len - each.q_len for each in step.requests if each.q_len]
            of_chunks = merges(self._case, prefixes, chunk_capacity(self._case, most_requests(self._case)))
        return max(MERGES, of_chunks) if self._loaded.kind.sharded else of_chunks

    def _run(self, runner: AnyRunner, index: int, step: Step) -> WrittenThenAttended | None:
        if step.launch is Launch.CAPTURE:
            if index in self._without_graph:
                raise self._without_graph[index]
            return None
        self._server.pool.write_before(step)
        requests = [request for request in step.requests if request.q_len]
        out, first_rows = runner.run(index, requests)
        output = self._output(step, index, out, first_rows)
        written = self._server.pool.written(step, rejected(self._case, index))
        return WrittenThenAttended(written, output, partial(self._again, runner, output, written.due()))

    def _again(self, runner: AnyRunner, output: Output, right: Sequence[torch.Tensor]) -> Output:
        """Return the last step's output, computed again on the correct contents of the pool."""
        self._server.pool.restore(right)
        with self._running():
            return replace(output, out=runner.again())

    def _output(self, step: Step, index: int, out: torch.Tensor, first_rows: list[int]) -> Output:
        dim = key_dim(self._case)
        drawn = draw_queries(self._case, index, max(step.padded_tokens, out.shape[0]), dim, first_rows)
        query, pool = Quantisation.of(self._case).rounded(drawn), self._server.pool
        return Output(
            out=out,
            lse=None,
            attended=pool.attended(step, query, first_rows),
            sinks=self._server.sinks,
            roundings=self._kernels.roundings + self._merges(step),
            shares=pool.sharding if isinstance(pool, ShardedPool) else None,
            **cached_scales(self._case),
        )
