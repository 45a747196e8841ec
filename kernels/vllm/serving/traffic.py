"""The requests to an engine that follow from the steps of a case, and the tokens that a model generates.

Each sequence of the case is a conversation. A step demands that the conversations of its requests reach its lengths: a
prefill sends a prompt, a decode or a verify lets the conversation's current request generate.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from attnfuzz.kernels.vllm.serving.vocabulary import Vocabulary
from attnfuzz.reference.case import Case, Mode, Request, Step

_CATCHES_UP: int = 4
"""Maximum number of tokens that a request generates to reach a step. Beyond, a new request has a longer prompt."""


@dataclass
class SentRequest:
    """A request to the engine.

    Attributes:
        name: Its id in the engine.
        slot: Its conversation.
        prompt: The length of its prompt.
        most: The length at which it ends: its prompt and all tokens that it may generate.
        known: The ids of its prompt and of the generated tokens.
        run_on: The ids generated after its end, in a forward that was scheduled before the end was known.

    """

    name: str
    slot: int
    prompt: int
    most: int
    known: list[int] = field(default_factory=list)
    run_on: list[int] = field(default_factory=list)

    @property
    def of_model(self) -> list[int]:
        """The ids that the model has seen, including those after the request's end."""
        return [*self.known, *self.run_on]

    @property
    def ended(self) -> bool:
        """Whether it has generated all of its tokens."""
        return len(self.known) >= self.most


@dataclass(frozen=True)
class _Asked:
    """A demand that a request reach more than `tokens` tokens, the last of which is not computed yet."""

    sent: SentRequest
    tokens: int
    drafts: int = 0

    @property
    def open(self) -> bool:
        return not self.sent.ended and len(self.sent.known) <= self.tokens


@dataclass
class Changes:
    """The requests to abort and those to send, in order, before a forward."""

    aborted: list[SentRequest] = field(default_factory=list)
    sent: list[SentRequest] = field(default_factory=list)


class Traffic:
    """The requests of a case on a server with up to `drafts` draft tokens per request."""

    def __init__(self, case: Case, vocabulary: Vocabulary, drafts: int) -> None:
        self._case, self._words, self._drafts = case, vocabulary, drafts
        self._live: dict[int, SentRequest] = {}
        self._reached = dict.fromkeys(vocabulary.streams, 0)
        self._stages: list[list[_Asked]] = []
        self._asked: list[_Asked] = []
        self._number = 0

    def begin(self, index: int) -> Changes:
        """Return the changes at a step: conversations that end, begin, or continue with a longer prompt."""
        step, changes = self._case.steps[index], Changes()
        self._asked = []
        first: list[_Asked] = []
        then: list[_Asked] = []
        asking = {request.slot for request in step.requests if request.q_len}
        for slot, sent in list(self._live.items()):
            if slot not in asking and not sent.ended and self._chance(sent, index).randrange(2):
                changes.aborted.append(self._live.pop(slot))
        for request in step.requests:
            if request.q_len:
                self._ask(step, request, changes, first, then)
        self._stages = [stage for stage in (first, then) if stage]
        changes.sent += self.proceed().sent
        return changes

    def proceed(self) -> Changes:
        """Return the changes before a further forward of a step: prompts whose prefix another request has computed."""
        changes = Changes()
        while self._stages and not any(each.open for each in self._asked):
            stage = self._stages.pop(0)
            self._asked += stage
            for each in stage:
                if not each.sent.known:
                    each.sent.known = self._words.streams[each.sent.slot][: each.sent.prompt]
                    self._live[each.sent.slot] = each.sent
                    changes.sent.append(each.sent)
        return changes

    def unfinished(self) -> bool:
        """Return whether the step needs further forwards."""
        return bool(self._stages) or any(each.open for each in self._asked)

    def drafts(self, sent: SentRequest, index: int) -> list[int]:
        """Return the drafts for a request's next forward. The model accepts the first ones, or none."""
        if len(sent.known) == sent.prompt or sent.ended:
            return []
        asked = next((each for each in self._asked if each.sent is sent and len(sent.known) == each.tokens), None)
        chance = self._chance(sent, len(sent.known))
        count = chance.randrange(self._drafts + 1) if asked is None else asked.drafts
        right = self._accepted(sent, index)
        if not 0 <= right <= count:
            right = chance.randrange(count + 1)
        begin = len(sent.known)
        return self._tokens(sent, begin, right, min(count, len(self._words.streams[sent.slot]) - begin), chance)

    def drafted(self, sent: SentRequest, known: Sequence[int], index: int) -> list[int]:
        """Return the draft model's drafts after a forward of step `index`, when a request has the ids `known`.

        The model accepts those before the request's next length in the case.
        """
        begin, chance = len(known), self._chance(sent, len(known))
        due = (each - begin - 1 for each in self._lengths_due(sent, index) if each > begin)
        right = next(due, self._drafts + 1)
        if right > self._drafts:
            right = chance.randrange(self._drafts + 1)
        return self._tokens(sent, begin, right, self._drafts, chance)

    def answer(self, sent: SentRequest, drafts: Sequence[int]) -> list[int]:
        """Return the tokens that a forward over all known tokens and `drafts` generates: accepted drafts, plus one."""
        stream, begin = self._words.streams[sent.slot], len(sent.of_model)
        due = [*stream[begin : begin + len(drafts) + 1], self._words.stranger(len(stream))]
        accepted = 0
        while accepted < len(drafts) and drafts[accepted] == due[accepted] and begin + accepted < len(stream):
            accepted += 1
        return due[: accepted + 1]

    def generated(self, sent: SentRequest, tokens: Sequence[int]) -> None:
        """Append generated tokens. The engine keeps those up to the request's end."""
        generated = [*sent.of_model, *tokens]
        sent.known, sent.run_on = generated[: sent.most], generated[sent.most :]
        self._reached[sent.slot] = max(self._reached[sent.slot], len(sent.known) - 1)
        if sent.ended and self._live.get(sent.slot) is sent:
            del self._live[sent.slot]

    def _ask(self, step: Step, request: Request, changes: Changes, first: list[_Asked], then: list[_Asked]) -> None:
        slot, before = request.slot, _known_before(step, request) - 1
        live = self._live.get(slot)
        decodes = step.mode.speculative and before > 0
        if decodes and live is not None and 0 <= before + 1 - len(live.known) <= _CATCHES_UP:
            first.append(_Asked(live, before + 1, request.q_len - 1))
            return
        if live is not None:
            changes.aborted.append(self._live.pop(slot))
        whole = len(self._words.streams[slot]) + 1
        if decodes:
            first.append(_Asked(self._new(slot, before, whole), before + 1, request.q_len - 1))
            return
        if before > self._reached[slot]:
            # Another request with the prefix runs first, and leaves its keys in the prefix cache.
            first.append(_Asked(self._new(slot, before, before + 1), before))
        whole_prompt = before + 1 if step.mode is Mode.DRAFT_DECODE else request.kv_len
        then.append(_Asked(self._new(slot, whole_prompt, whole), whole_prompt))

    def _new(self, slot: int, prompt: int, most: int) -> SentRequest:
        self._number += 1
        return SentRequest(f"{slot}-{self._number}", slot, prompt, most)

    def _tokens(self, sent: SentRequest, begin: int, right: int, count: int, chance: random.Random) -> list[int]:
        """Return `count` drafts from a position on, of which the first `right` are the sequence's own tokens."""
        stream = self._words.streams[sent.slot]
        return [
            stream[at] if at < min(begin + right, len(stream)) else self._words.stranger(at, chance.randrange(4))
            for at in range(begin, begin + count)
        ]

    def _lengths_due(self, sent: SentRequest, index: int) -> Iterator[int]:
        """Yield the lengths that a request must have before forwards of step `index` and of later ones."""
        yield from (each.tokens for each in self._asked if each.sent is sent)
        for step in self._case.steps[index + 1 :]:
            for request in step.requests:
                if request.slot == sent.slot and request.q_len:
                    yield _known_before(step, request)

    def _accepted(self, sent: SentRequest, index: int) -> int:
        """Return how many drafts of a forward are accepted according to a later step of the case; -1 if none tells."""
        for step in self._case.steps[index + 1 :]:
            for request in step.requests:
                if request.slot == sent.slot and request.q_len:
                    return request.kv_len - request.q_len - len(sent.known)
        return -1

    def _chance(self, sent: SentRequest, moment: int) -> random.Random:
        return random.Random(f"{self._case.serving.seed} {sent.name} {moment}")


def as_prompts(case: Case) -> Case:
    """Return the case with the largest forwards that its steps may take: whole prompts, limited only by the budget."""
    most = case.serving.budget
    steps = []
    for step in case.steps:
        requests = tuple(replace(each, q_len=min(each.kv_len, most or each.kv_len)) for each in step.requests)
        padded = max(step.padded_tokens, sum(each.q_len for each in requests))
        steps.append(replace(step, mode=Mode.EXTEND, requests=requests, padded_tokens=padded))
    return replace(case, steps=tuple(steps))


def _known_before(step: Step, request: Request) -> int:
    """Return the number of tokens that a request has before a forward of a step: the computed ones, plus one.

    A draft model decodes after a forward over the whole prefix.
    """
    return request.kv_len - request.q_len + (step.mode is not Mode.DRAFT_DECODE)
