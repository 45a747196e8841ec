"""A case's steps as outputs of vLLM's scheduler: new and continued requests, their blocks and drafts.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from attnfuzz.kernels.vllm.pool import VllmPool
from attnfuzz.reference.case import Case, Request, TableTail


@dataclass
class _Serving:
    """A request on the server. Its last step computed keys `computed` to `reached`."""

    name: str
    decodes: bool
    computed: int
    reached: int
    blocks: int = field(default=0)

    def goes_on(self, request: Request, *, decodes: bool) -> bool:
        """Return whether `request` is a later step of this one: after a verify, it continues at an accepted token."""
        computed = request.kv_len - request.q_len
        if self.decodes:
            return decodes and self.computed < computed <= self.reached
        return computed == self.reached


class ScheduledSteps:
    """The scheduler's outputs for the steps of a case, for the model runner of a release.

    Each sequence of the case is a request. The id of a token is its index into the pool's tokens, so all ids differ. If
    a step can't follow a sequence's last one, the sequence becomes a new request.
    """

    def __init__(self, loaded: Any, case: Case, pool: VllmPool, runner: Any) -> None:
        self._case, self._pool, self._runner = case, pool, runner
        self._output = loaded.module("vllm.v1.core.sched.output")
        self._state = loaded.module("vllm.v1.worker.gpu_input_batch").CachedRequestState
        self._sampling = loaded.module("vllm.sampling_params").SamplingParams(temperature=0.0)
        self._serving: dict[int, _Serving] = {}
        self._finished: set[str] = set()
        self._begun = 0
        self._next = 0

    @property
    def _threshold(self) -> int:
        """Maximum number of tokens in a decode: that of a verify if batches are not reordered."""
        threshold: int = self._runner.reorder_batch_threshold or self._runner.uniform_decode_query_len
        return threshold

    def _decodes(self, index: int, request: Request) -> bool:
        """Return whether a request of a step decodes: with a prefix, and few tokens."""
        del index
        return request.kv_len > request.q_len <= self._threshold

    def tokens(self, slot: int, first: int, end: int) -> list[int]:
        """Return the ids of a sequence's tokens [first, end)."""
        start = self._pool.tokens.spans[slot].start
        return list(range(start + first, start + end))

    def earlier(self, limit: int) -> Any:
        """Return the SchedulerOutput of a step before the case, with as many requests as fit, which then end.

        Their blocks follow from the case's table tail. None if the tail implies that there were no requests.
        """
        paged, chance = self._pool.paged, random.Random(self._case.seed)
        match self._case.pages.tail:
            case TableTail.ZEROS | TableTail.MINUS_ONE:
                # A table is initialized with zeros, and no server writes -1 to it.
                return None
            case TableTail.POISON:
                owned = [paged.poison_page]
            case TableTail.STALE:
                owned = sorted({page for pages in paged.pages.values() for page in pages}) or [paged.poison_page]
        length = self._runner.max_model_len
        pages = -(-length // self._pool.block_size)
        ordered = self._output.SchedulerOutput.make_empty()
        for index in range(limit):
            name = f"earlier-{index}"
            blocks = [chance.choice(owned) for _ in range(pages)]
            ordered.scheduled_new_reqs.append(self._new(name, [0] * length, blocks, length - 1))
            ordered.num_scheduled_tokens[name] = 1
            self._finished.add(name)
        ordered.total_num_scheduled_tokens = limit
        return ordered

    def order(self, index: int, requests: Sequence[Request], ends: Mapping[int, int] = MappingProxyType({})) -> Any:
        """Return the SchedulerOutput of a step with these requests, each of which has tokens.

        `ends` maps the slots of requests with drafts, whose prompt has ended, to the number of tokens that they have
        blocks for.
        """
        ordered = self._output.SchedulerOutput.make_empty()
        self._end_requests(index)
        for request in requests:
            self._schedule(ordered, index, request, ends.get(request.slot))
        ordered.total_num_scheduled_tokens = sum(ordered.num_scheduled_tokens.values())
        ordered.finished_req_ids = self._finished
        self._finished = set()
        return ordered

    def name(self, slot: int) -> str:
        """Return the id of a sequence's current request."""
        return self._serving[slot].name

    def _end_requests(self, index: int) -> None:
        """End the requests without further steps, and those whose sequences another server has run since.

        A case with drafts and captured decodes has two servers (VllmSession).
        """
        left = {request.slot for step in self._case.steps[index:] for request in step.requests}
        elsewhere = {
            request.slot for step in self._case.steps[self._next : index] for request in step.requests if request.q_len
        }
        self._next = index + 1
        for slot in [slot for slot in self._serving if slot not in left - elsewhere]:
            self._finished.add(self._serving.pop(slot).name)

    def _schedule(self, ordered: Any, index: int, request: Request, drafted: int | None) -> None:
        slot, computed = request.slot, request.kv_len - request.q_len
        decodes = self._decodes(index, request)
        serving = self._serving.get(slot)
        pages = self._pool.pages(replace(request, kv_len=max(request.kv_len, drafted or 0)))
        if serving is not None and serving.goes_on(request, decodes=decodes):
            self._accept(serving, slot, computed + 1 if decodes else 0)
            self._again(ordered, serving, computed, pages[serving.blocks :])
        else:
            if serving is not None:
                self._finished.add(serving.name)
            serving = _Serving(f"{slot}-{self._begun}", decodes, computed, request.kv_len)
            self._begun += 1
            self._serving[slot] = serving
            if decodes:
                self._resume(serving, slot, computed, pages)
                self._again(ordered, serving, computed, [])
            else:
                prompt = self.tokens(slot, 0, self._prompt(index, request) if drafted is None else request.kv_len)
                ordered.scheduled_new_reqs.append(self._new(serving.name, prompt, pages, computed))
        serving.decodes, serving.computed, serving.reached = decodes or drafted is not None, computed, request.kv_len
        serving.blocks = len(pages)
        ordered.num_scheduled_tokens[serving.name] = request.q_len
        if decodes and request.q_len > 1:
            ordered.scheduled_spec_decode_tokens[serving.name] = self.tokens(slot, computed + 1, request.kv_len)

    def _prompt(self, index: int, request: Request) -> int:
        """Return the length of a request's prompt: the end of the last step that continues its prefill."""
        end = request.kv_len
        for at, step in enumerate(self._case.steps[index + 1 :], index + 1):
            later = next((each for each in step.requests if each.slot == request.slot and each.q_len), None)
            if later is None:
                continue
            if later.kv_len - later.q_len != end or self._decodes(at, later):
                break
            end = later.kv_len
        return end

    def _new(self, name: str, prompt: list[int], blocks: list[int], computed: int) -> Any:
        return self._output.NewRequestData(
            req_id=name,
            prompt_token_ids=prompt,
            mm_features=[],
            sampling_params=self._sampling,
            pooling_params=None,
            block_ids=(list(blocks),),
            num_computed_tokens=computed,
            lora_request=None,
        )

    def _resume(self, serving: _Serving, slot: int, computed: int, pages: Sequence[int]) -> None:
        """Add a decoding request to the runner's state, as if it had run before and merely skipped the last step."""
        self._runner.requests[serving.name] = self._state(
            req_id=serving.name,
            prompt_token_ids=self.tokens(slot, 0, computed),
            mm_features=[],
            sampling_params=self._sampling,
            generator=None,
            block_ids=(list(pages),),
            num_computed_tokens=computed,
            output_token_ids=self.tokens(slot, computed, computed + 1),
        )

    def _again(self, ordered: Any, serving: _Serving, computed: int, new_blocks: Sequence[int]) -> None:
        cached = ordered.scheduled_cached_reqs
        cached.req_ids.append(serving.name)
        cached.new_block_ids.append((list(new_blocks),) if new_blocks else None)
        cached.num_computed_tokens.append(computed)
        cached.num_output_tokens.append(len(self._runner.requests[serving.name].output_token_ids))

    def _accept(self, serving: _Serving, slot: int, known: int) -> None:
        """Append the sampled or accepted tokens, up to `known` in total (v1/worker/gpu_model_runner.py:3538)."""
        state, batch = self._runner.requests[serving.name], self._runner.input_batch
        begin = state.num_tokens
        sampled = self.tokens(slot, begin, known)
        if not sampled:
            return
        row = batch.req_id_to_index.get(serving.name)
        if row is not None:
            batch.token_ids_cpu[row, begin:known] = sampled
            batch.is_token_ids[row, begin:known] = True
            batch.num_tokens_no_spec[row] = known
        state.output_token_ids.extend(sampled)
