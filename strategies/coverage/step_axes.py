"""The axes on which each step of a case lies: its mode and launch, its batch, the lengths of its requests."""

from collections.abc import Set as AbstractSet

from attnfuzz.reference.case import Launch, Mode
from attnfuzz.reference.chunks import chunks_of
from attnfuzz.strategies.coverage.axis import Axis, single
from attnfuzz.strategies.coverage.classes import (
    ACCEPTED,
    BATCHES,
    DRAFTS,
    KEYS,
    KV_LENGTHS,
    QUERIES,
    accepted_class,
    kv_length_class,
)
from attnfuzz.strategies.coverage.moments import Moment

_UNIFORM = "the same"


def _launch(moment: Moment) -> tuple[str, ...]:
    if moment.step.launch is Launch.EAGER:
        return ("eager",)
    replay = "replayed again" if moment.replayed else "first replay"
    return (replay, "captured late") if moment.captured_late else (replay,)


def _padding(moment: Moment) -> str:
    step = moment.step
    more = step.padded_batch - len(step.requests)
    if more > 0:
        return "fewer requests than real" if more < len(step.requests) else "as many requests, or more"
    return "tokens" if step.padded_tokens > step.tokens else "none"


def _batch(moment: Moment) -> str:
    return BATCHES.of(len(moment.step.requests))


def _without_keys(moment: Moment) -> str:
    empty = sum(kv_len == 0 for _, kv_len in moment.asking)
    return "none" if not empty else "all" if empty == len(moment.asking) else "some"


def _kv_len(moment: Moment) -> AbstractSet[str]:
    page = moment.case.geometry.page_size
    return {kv_length_class(kv_len, page) for _, kv_len in moment.asking}


def _prefix(moment: Moment) -> AbstractSet[str]:
    return {
        "yes" if kv_len > q_len else "none" if kv_len == q_len else "fewer keys than queries"
        for q_len, kv_len in moment.asking
        if kv_len
    }


def _q_lens(moment: Moment) -> tuple[str, ...]:
    several = len({q_len for q_len, _ in moment.asking}) > 1
    lengths = "ragged" if several else _UNIFORM
    return (lengths, "an idle request") if len(moment.asking) < len(moment.step.requests) else (lengths,)


def _longest_q(moment: Moment) -> str:
    return QUERIES.of(max(q_len for q_len, _ in moment.asking))


def _longest_kv(moment: Moment) -> str:
    return KEYS.of(max(kv_len for _, kv_len in moment.asking))


def _drafts(moment: Moment) -> tuple[str, ...]:
    step = moment.step
    drafting = step.mode.speculative and step.mode is not Mode.DECODE
    return (DRAFTS.of(step.tokens_per_request),) if drafting else ()


def _accepted(moment: Moment) -> AbstractSet[str]:
    if moment.step.mode is not Mode.DRAFT_EXTEND:
        return frozenset()
    stride = moment.step.tokens_per_request
    return {accepted_class(q_len, stride) for q_len, _ in moment.asking}


def _slots(moment: Moment) -> str:
    slots = [request.slot for request in moment.step.requests]
    return "in order" if slots == sorted(slots) else "permuted"


def _past(moment: Moment) -> AbstractSet[str]:
    """A request grows; where a slot has fewer keys than before, it was handed on to another request."""
    before = moment.prefixes
    return {
        "new"
        if request.slot not in before
        else "grown"
        if request.kv_len - request.q_len >= before[request.slot]
        else "handed on"
        for request in moment.step.requests
    }


def _chunks(moment: Moment) -> tuple[str, ...]:
    step = moment.step
    if moment.case.geometry.latent is None or step.mode is not Mode.CHUNKED_PREFILL:
        return ()
    chunks = chunks_of(step, moment.case.chunk_capacity)
    if chunks < 2:
        return ("one",) if chunks else ("no prefix",)
    before_last = (chunks - 1) * (moment.case.chunk_capacity // len(step.requests))
    ends_early = any(request.kv_len - request.q_len <= before_last for request in step.requests)
    return ("several", "one request ends early") if ends_early else ("several",)


def _window(moment: Moment) -> str:
    left = moment.case.geometry.window_left
    if left < 0:
        return "none"
    if left == 0:
        return "a query's own key"
    return "cuts keys off" if any(kv_len > left + 1 for _, kv_len in moment.asking) else "longer than all keys"


STEP_AXES: tuple[Axis[Moment], ...] = (
    single("mode", tuple(mode.value for mode in Mode), lambda moment: moment.step.mode.value),
    Axis("launch", ("eager", "first replay", "replayed again", "captured late"), _launch),
    single("padding", ("none", "tokens", "fewer requests than real", "as many requests, or more"), _padding),
    single("batch", BATCHES.names, _batch),
    single("without keys", ("none", "some", "all"), _without_keys),
    Axis("kv len", KV_LENGTHS, _kv_len),
    single("longest kv", KEYS.names, _longest_kv),
    Axis("prefix", ("yes", "none", "fewer keys than queries"), _prefix, total=False),
    Axis("q lens", (_UNIFORM, "ragged", "an idle request"), _q_lens),
    single("longest q", QUERIES.names, _longest_q),
    Axis("drafts", DRAFTS.names, _drafts, total=False),
    Axis("accepted", ACCEPTED, _accepted, total=False),
    single("slots", ("in order", "permuted"), _slots),
    Axis("past", ("new", "grown", "handed on"), _past),
    Axis("chunks", ("no prefix", "one", "several", "one request ends early"), _chunks, total=False),
    single("window", ("none", "a query's own key", "cuts keys off", "longer than all keys"), _window),
)
