"""A case on a release's engine with a draft model, whose forwards are judged with the target's."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Output, WrittenCache, WrittenThenAttended
from attnfuzz.kernels.vllm.serving.drafting import DraftedTokens, DraftingEngineRunner
from attnfuzz.kernels.vllm.serving.latents import LatentDraftingEngineRunner
from attnfuzz.kernels.vllm.serving.runner import EngineRunner
from attnfuzz.kernels.vllm.serving.scheduled_pool import ScheduledTokens
from attnfuzz.kernels.vllm.serving.session import EngineSession
from attnfuzz.reference.case import Step


class DraftingEngineSession(EngineSession):
    """A session on an engine whose proposer generates the drafts of all requests.

    The draft model's forwards attend to each request's tokens and drafts, in a separate pool. After a wrong write, only
    the target's attention is judged.
    """

    _runner: DraftingEngineRunner
    _drafted: Mapping[str, DraftedTokens] = {}

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._generated: dict[str, list[int]] = {}

    @property
    def _runner_type(self) -> type[EngineRunner]:
        return LatentDraftingEngineRunner if self._case.geometry.latent else DraftingEngineRunner

    def _propose(self, index: int) -> None:
        """Do nothing: drafts were handed over after the last forward."""

    def _chunks(self, scheduled: Any) -> dict[str, ScheduledTokens]:
        """Return the new tokens of a forward. RuntimeError also for drafts that the draft model has not generated."""
        for name in scheduled.scheduled_spec_decode_tokens:
            tokens = self._drafts(name, scheduled)
            own = self._generated.get(name, [])
            # A scheduler pads a prompt's last token to a verify by -1 (v1/core/sched/scheduler.py:1582).
            given = [token for token in tokens if token >= 0]
            if given != own[: len(given)]:
                raise RuntimeError(f"the engine verifies {tokens} of {name}, but its draft model generated {own}")
        return super()._chunks(scheduled)

    def _drafts(self, name: str, scheduled: Any) -> Sequence[int]:
        placeholders = super()._drafts(name, scheduled)
        if not self._asynchronous:
            return placeholders
        # The runner kept the drafts of the last forward (v1/worker/gpu_model_runner.py, _prepare_input_ids).
        return [*self._generated.get(name, []), *placeholders][: len(placeholders)]

    def _run(
        self, index: int, scheduled: Any, chunks: Mapping[str, ScheduledTokens], answers: Mapping[str, Sequence[int]]
    ) -> Any:
        self._drafted = {name: self._after(name, chunk, answers[name], index) for name, chunk in chunks.items()}
        return self._runner.draft(self._case.steps[index], scheduled, self._sampled(answers), self._drafted)

    def _after(self, name: str, chunk: ScheduledTokens, answer: Sequence[int], index: int) -> DraftedTokens:
        """Return the draft model's forwards for a request."""
        sent = self._sent[name]
        # Within a prompt, the next token is the prompt's.
        known = [*sent.of_model, *answer] if answer else sent.known[: len(chunk.rows) + 1]
        drafts = self._traffic.drafted(sent, known, index)
        return DraftedTokens.after(chunk, [*known, *drafts], len(drafts), self._words, kept=bool(answer))

    def _step(self, index: int, step: Step) -> WrittenThenAttended:
        result = super()._step(index, step)
        if self._drafted:
            self._hand_over()
        return result

    def _hand_over(self) -> None:
        """Hand over the drafts of the last forward (v1/engine/core.py, post_step)."""
        generated = {name: each.generated() for name, each in self._drafted.items() if each.decodes}
        if self._asynchronous:
            self._generated = generated
            return
        self._generated |= generated
        taken = self._runner.take_drafts()
        self._runner.scheduler.propose(taken)

    def _keep(self, step: Step) -> None:
        super()._keep(step)
        self._runner.draft_pool.write_before(step)

    def _written(self, chunks: Mapping[str, ScheduledTokens]) -> WrittenCache:
        drafted = [self._drafted[name] for name in chunks]
        return _both(super()._written(chunks), self._runner.written_by(drafted))

    def _judged(self, output: Output, first_rows: Mapping[str, int]) -> Output:
        outs, begin = self._runner.draft_model.outs, len(output.out)
        due = self._runner.attended_by({name: self._drafted[name] for name in first_rows}, first_rows)
        of_drafts = (replace(each, first_row=begin + each.first_row) for each in due)
        return replace(output, out=torch.cat([output.out, *outs]), attended=(*output.attended, *of_drafts))

    def _restore(self, right: Sequence[torch.Tensor]) -> None:
        count = len(self._pool.names)
        self._pool.restore(right[:count])
        self._runner.draft_pool.restore(right[count:])


def _both(target: WrittenCache, drafts: WrittenCache) -> WrittenCache:
    """Return both pools before and after a forward."""
    first = len(target.tokens)
    return replace(
        target,
        tensors=(*target.tensors, *(replace(each, first=first) for each in drafts.tensors)),
        tokens=(*target.tokens, *drafts.tokens),
    )
