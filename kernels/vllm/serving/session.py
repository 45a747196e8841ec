"""A case on a release's engine: each step is a demand, and the engine chooses the forwards that meet it."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from attnfuzz.kernels.interface.backend import Bench, Output, WrittenCache, WrittenThenAttended
from attnfuzz.kernels.planning.queries import cached_scales
from attnfuzz.kernels.releases.answers import ASKED
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow, code_of
from attnfuzz.kernels.releases.rejection import rejections_of
from attnfuzz.kernels.vllm.mla.prefills import chunk_capacity, merges
from attnfuzz.kernels.vllm.runner import WORDS
from attnfuzz.kernels.vllm.server import VllmServer
from attnfuzz.kernels.vllm.serving.latents import LatentEnginePool, LatentEngineRunner
from attnfuzz.kernels.vllm.serving.on_cpu import CpuEnginePool, CpuEngineRunner
from attnfuzz.kernels.vllm.serving.runner import Answer, EngineRunner
from attnfuzz.kernels.vllm.serving.scheduled_pool import EnginePool, ScheduledTokens
from attnfuzz.kernels.vllm.serving.scheduler import ReceivedTokens
from attnfuzz.kernels.vllm.serving.traffic import Changes, SentRequest, Traffic
from attnfuzz.kernels.vllm.serving.vocabulary import Vocabulary
from attnfuzz.kernels.vllm.session import drafts_of
from attnfuzz.reference.case import Case, Launch, PageOrder, Step

_MOST_IDLE = 3
"""Maximum number of consecutive forwards without any request, on a server that has requests."""

_FORWARDS_OF_A_TOKEN = 4
"""Maximum number of forwards of a step, per token of the case. Each advances some request unless one is preempted."""


_NOTHING = ReceivedTokens((), ended=False)


class _InFlight(NamedTuple):
    """A forward that has run, but whose tokens the scheduler does not have yet.

    Attributes:
        scheduled: Its SchedulerOutput.
        output: The runner's output.
        due: By request, the tokens that its client must receive, and the number of tokens that it had before.

    """

    scheduled: Any
    output: Any
    due: Mapping[str, tuple[ReceivedTokens, int]]


class EngineSession:
    """A session on a release's engine.

    An asynchronous server schedules the next forward before it has the tokens of the last one, which are in flight.

    Outputs are judged by the tokens of each request, whatever the pool holds. So a block that the engine frees too
    early, or shares by mistake, is detected as a wrong output.
    """

    _runner: EngineRunner

    def __init__(self, loaded: Any, kernels: KernelsBelow, case: Case, bench: Bench) -> None:
        self._loaded, self._kernels, self._case, self._bench = loaded, kernels, case, bench
        self._code = code_of(loaded.release, bench, kernels)
        drafts = drafts_of(case)
        with self._running():
            self._server = VllmServer(loaded, case, bench, self._pool_type)
            assert isinstance(self._server.pool, EnginePool)
            self._pool = self._server.pool
            paged = self._pool.paged
            shared = paged.full_pages if case.pages.order is PageOrder.SHARED_PREFIX else {}
            self._words = Vocabulary(paged.tokens, shared, paged.page_size)
            self._traffic = Traffic(case, self._words, drafts)
            self._runner = self._runner_type(self._server, drafts, self._words)
        self._sent: dict[str, SentRequest] = {}
        self._asynchronous = case.serving.asynchronous
        self._in_flight: deque[_InFlight] = deque()
        self._computed: dict[str, int] = {}
        self._begun = -1
        self._captured = False
        self._number = 0
        self._idle = 0

    @property
    def _pool_type(self) -> type[EnginePool]:
        if self._loaded.kind.on_cpu:
            return CpuEnginePool
        return LatentEnginePool if self._case.geometry.latent else EnginePool

    @property
    def _runner_type(self) -> type[EngineRunner]:
        """The type of the runner of the case's server."""
        if self._loaded.kind.on_cpu:
            return CpuEngineRunner
        return LatentEngineRunner if self._case.geometry.latent else EngineRunner

    def forward(self, index: int) -> WrittenThenAttended | None:
        """Run one forward of a step; None for a capture."""
        step = self._case.steps[index]
        with self._running():
            output = self._forward(index, step)
        ASKED.check()
        return output

    def unfinished(self, index: int) -> bool:
        """Return whether the step needs another forward."""
        return self._case.steps[index].launch is not Launch.CAPTURE and self._traffic.unfinished()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Prepare the process for code of the release. Raises Unsupported if the release rejects the case."""
        with rejections_of(self._loaded.release), self._code():
            yield

    def _forward(self, index: int, step: Step) -> WrittenThenAttended | None:
        if step.launch is Launch.CAPTURE:
            if not self._captured:
                self._captured = True
                self._runner.capture_all(index, step)
            return None
        self._keep(step)
        if self._begun != index:
            self._begun = index
            self._runner.be_idle(step)
            self._apply(self._traffic.begin(index))
        else:
            self._apply(self._traffic.proceed())
        return self._step(index, step)

    def _keep(self, step: Step) -> None:
        """Save the contents of the KV cache before a forward of `step`."""
        self._pool.write_before(step)

    def _apply(self, changes: Changes) -> None:
        scheduler = self._runner.scheduler
        for sent in changes.aborted:
            scheduler.abort(sent.name)
            del self._sent[sent.name]
        for sent in changes.sent:
            scheduler.send(sent.name, sent.known, sent.most - sent.prompt)
            self._sent[sent.name] = sent

    def _step(self, index: int, step: Step) -> WrittenThenAttended:
        """Run one step of the engine (v1/engine/core.py, step)."""
        scheduler = self._runner.scheduler
        self._propose(index)
        scheduled = scheduler.schedule()
        chunks = self._chunks(scheduled)
        self._check_progress(chunks)
        self._bench.launcher.reached_by(self._words_for(step, scheduled, chunks))
        answers = {name: self._answer(name, chunk, scheduled) for name, chunk in chunks.items()}
        output = self._run(index, scheduled, chunks, answers)
        due = {name: self._generate(name, chunks[name], tokens) for name, tokens in answers.items()}
        self._in_flight.append(_InFlight(scheduled, output, due))
        last = index + 1 == len(self._case.steps) and not self._traffic.unfinished()
        self._update(left=int(self._asynchronous and not last))
        return self._result(step, chunks, self._runner.first_rows(scheduled) if chunks else {})

    def _propose(self, index: int) -> None:
        """Pass the drafts for the next forward to the scheduler."""
        if self._asynchronous:
            return
        self._runner.scheduler.propose({name: self._traffic.drafts(sent, index) for name, sent in self._sent.items()})

    def _run(
        self, index: int, scheduled: Any, chunks: Mapping[str, ScheduledTokens], answers: Mapping[str, Sequence[int]]
    ) -> Any:
        """Run the scheduled tokens; the model then generates `answers`. Returns the runner's output."""
        del chunks
        return self._runner.forward(self._case.steps[index], scheduled, self._sampled(answers))

    def _sampled(self, answers: Mapping[str, Sequence[int]]) -> Answer:
        """Return the answers, and samples for partly computed prompts, which a release must discard."""
        early = (self._words.stranger(0),)
        return lambda name: answers[name] or early

    def _chunks(self, scheduled: Any) -> dict[str, ScheduledTokens]:
        """Return the new tokens of a forward by request. Raises RuntimeError for tokens that a request lacks."""
        cached = scheduled.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        if self._asynchronous:
            # The scheduler assumes that all drafts in flight are accepted.
            computed |= {name: self._computed[name] for name in computed if name not in cached.resumed_req_ids}
        computed |= {each.req_id: each.num_computed_tokens for each in scheduled.scheduled_new_reqs}
        chunks = {}
        for name, new in scheduled.num_scheduled_tokens.items():
            sent, begin = self._sent[name], computed[name]
            tokens = [*sent.of_model, *self._drafts(name, scheduled)]
            if len(tokens) < begin + new:
                raise RuntimeError(
                    f"the engine schedules tokens {begin} to {begin + new} of a request that has {len(tokens)}"
                )
            rows = [self._words.row(token, position) for position, token in enumerate(tokens[: begin + new])]
            chunks[name] = ScheduledTokens(rows, new, self._runner.scheduler.blocks(name))
        return chunks

    def _answer(self, name: str, chunk: ScheduledTokens, scheduled: Any) -> Sequence[int]:
        """Return the tokens that the model generates in a forward: none until all known tokens are computed."""
        sent = self._sent[name]
        return (
            self._traffic.answer(sent, self._drafts(name, scheduled)) if len(chunk.rows) >= len(sent.of_model) else ()
        )

    def _drafts(self, name: str, scheduled: Any) -> Sequence[int]:
        """Return the drafts of a request that a forward verifies."""
        drafts: Sequence[int] = scheduled.scheduled_spec_decode_tokens.get(name, ())
        return drafts

    def _generate(self, name: str, chunk: ScheduledTokens, generated: Sequence[int]) -> tuple[ReceivedTokens, int]:
        """Record the tokens generated for a request. Returns those that its client must receive, up to its end."""
        sent = self._sent[name]
        before, ended = len(sent.known), sent.ended
        self._traffic.generated(sent, generated)
        self._computed[name] = len(sent.of_model) - 1 if generated else len(chunk.rows)
        due = _NOTHING if ended else ReceivedTokens(tuple(sent.known[before:]), ended=sent.ended)
        return due, before

    def _update(self, *, left: int) -> None:
        """Pass the tokens of forwards in flight, except the `left` last, to the scheduler; check those of clients."""
        while len(self._in_flight) > left:
            flight = self._in_flight.popleft()
            received = self._runner.scheduler.update(flight.scheduled, self._runner.result(flight.output))
            for name, (due, before) in flight.due.items():
                self._receive(name, received.get(name, _NOTHING), due, before)

    def _receive(self, name: str, received: ReceivedTokens, due: ReceivedTokens, before: int) -> None:
        """Raise RuntimeError unless a client receives the tokens that are `due`, or none if its request was aborted."""
        sent = self._sent.get(name)
        if sent is None:
            due = _NOTHING
        if received != due:
            length = "" if sent is None else f", after {before} tokens of {sent.most}, {sent.prompt} of them its prompt"
            raise RuntimeError(
                f"the client of {name} receives {_in_words(received)} instead of {_in_words(due)}{length}"
            )
        if due.ended:
            del self._sent[name]

    def _check_progress(self, chunks: Mapping[str, ScheduledTokens]) -> None:
        """Raise RuntimeError if a server has requests, but runs none of them in several consecutive forwards."""
        self._idle = 0 if chunks or not self._sent else self._idle + 1
        if self._number > _FORWARDS_OF_A_TOKEN * self._words.size * (self._begun + 1):
            raise RuntimeError(f"after {self._number} forwards the engine has not served {', '.join(self._sent)}")
        if self._idle > _MOST_IDLE:
            raise RuntimeError(f"the engine schedules nothing although it has requests: {', '.join(self._sent)}")

    def _words_for(self, step: Step, scheduled: Any, chunks: Mapping[str, ScheduledTokens]) -> str:
        """Describe the engine's forward, for reports of failures in it."""
        self._number += 1
        new = {each.req_id for each in scheduled.scheduled_new_reqs}
        parts = []
        for name, chunk in chunks.items():
            begin = len(chunk.rows) - chunk.new
            again = self._runner.scheduler.preemptions(name)
            events = [
                f"{begin} cached" if name in new and begin else "",
                f"preempted {again} times before" if again else "",
            ]
            noted = f" ({', '.join(filter(None, events))})" if any(events) else ""
            parts.append(f"{name}: tokens {begin} to {len(chunk.rows) - 1}{noted}, blocks {_listed(chunk.blocks)}")
        return f"{WORDS[step.launch]}; forward {self._number} of the engine, {'; '.join(parts) or 'nothing'}"

    def _result(
        self, step: Step, chunks: Mapping[str, ScheduledTokens], first_rows: Mapping[str, int]
    ) -> WrittenThenAttended:
        model, ordered = self._runner.model, {name: chunks[name] for name in first_rows}
        assert model.out is not None
        output = Output(
            out=model.out,
            lse=None,
            attended=self._pool.attended_by([*ordered.values()], model.queries, [*first_rows.values()]),
            sinks=self._server.sinks,
            roundings=self._kernels.roundings + self._merges(ordered),
            **cached_scales(self._case),
        )
        written = self._written(ordered)
        again = partial(self._again, output, written.due())
        return WrittenThenAttended(written, self._judged(output, first_rows), again)

    def _merges(self, chunks: Mapping[str, ScheduledTokens]) -> int:
        """Return the number of roundings of an output after the kernel's own."""
        if not self._case.geometry.latent:
            return 0
        assert isinstance(self._runner, LatentEngineRunner)
        prefixes = [len(each.rows) - each.new for each in chunks.values()]
        return merges(self._case, prefixes, chunk_capacity(self._case, self._runner.most_requests))

    def _written(self, chunks: Mapping[str, ScheduledTokens]) -> WrittenCache:
        """Return the KV cache before and after a forward."""
        return self._pool.written_by([*chunks.values()])

    def _judged(self, output: Output, first_rows: Mapping[str, int]) -> Output:
        """Return the output to judge, given the target's `output`."""
        del first_rows
        return output

    def _again(self, output: Output, right: Sequence[torch.Tensor]) -> Output:
        """Return the last forward's output, computed again on the correct contents of the pool."""
        self._restore(right)
        with self._running():
            return replace(output, out=self._runner.again())

    def _restore(self, right: Sequence[torch.Tensor]) -> None:
        self._pool.restore(right)


def _in_words(received: ReceivedTokens) -> str:
    tokens = " ".join(map(str, received.tokens)) or "no token"
    return f"{tokens}{' and its end' if received.ended else ''}"


_MOST_LISTED = 8


def _listed(blocks: Sequence[int]) -> str:
    shown = " ".join(map(str, blocks[-_MOST_LISTED:]))
    return f"... {shown}" if len(blocks) > _MOST_LISTED else shown
