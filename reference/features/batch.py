"""Features of the steps of a case, and of their requests."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from attnfuzz.reference.case import Case, Launch, Mode, Request, Step
from attnfuzz.reference.edges import Edge
from attnfuzz.reference.edits import removals
from attnfuzz.reference.features.classes import ACCEPTED, BATCHES, DRAFTS, KEYS, KV_LENGTHS, QUERIES
from attnfuzz.reference.features.moments import Moment
from attnfuzz.reference.features.row import (
    Axis,
    Refusal,
    but,
    classed,
    grouped,
    of_case,
    of_steps,
    only,
    removable,
    single,
    size,
)

if TYPE_CHECKING:
    from attnfuzz.reference.capability import Capability

TILE = 64
"""Number of keys that many kernels load at a time."""

_UNIFORM = "the same"


def _steps(case: Case) -> str:
    running = [step for step in case.steps if step.launch is not Launch.CAPTURE]
    if len(running) == 1:
        return "one"
    return "several modes" if len({step.mode for step in running}) > 1 else "several of one mode"


def _idle(case: Case) -> str:
    idle = [step for step in case.steps if step.idle]
    if any(step.launch is Launch.REPLAY for step in idle):
        return "replayed"
    return "none" if not idle else "padding alone" if any(step.padded_tokens for step in idle) else "no rows"


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


def _without_keys(moment: Moment) -> str:
    empty = sum(kv_len == 0 for _, kv_len in moment.asking)
    return "none" if not empty else "all" if empty == len(moment.asking) else "some"


def _kv_len(moment: Moment) -> AbstractSet[str]:
    page = moment.case.geometry.page_size
    return {KV_LENGTHS.of(kv_len, page) for _, kv_len in moment.asking}


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


def _drafts(moment: Moment) -> tuple[str, ...]:
    step = moment.step
    drafting = step.mode.speculative and step.mode not in (Mode.DECODE, Mode.DRAFT_DECODE)
    return (DRAFTS.of(step.tokens_per_request),) if drafting else ()


def _accepted(moment: Moment) -> AbstractSet[str]:
    if moment.step.mode is not Mode.DRAFT_EXTEND:
        return frozenset()
    stride = moment.step.tokens_per_request
    return {ACCEPTED.of(q_len, stride) for q_len, _ in moment.asking}


def _slots(moment: Moment) -> str:
    slots = [request.slot for request in moment.step.requests]
    return "in order" if slots == sorted(slots) else "permuted"


def _past(moment: Moment) -> AbstractSet[str]:
    """Return whether sequences are new, grown, or replaced: one with fewer keys than before is another request's."""
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
    chunks = step.chunks(moment.case.chunk_capacity)
    if chunks < 2:
        return ("one",) if chunks else ("no prefix",)
    before_last = (chunks - 1) * (moment.case.chunk_capacity // len(step.requests))
    ends_early = any(request.kv_len - request.q_len <= before_last for request in step.requests)
    return ("several", "one request ends early") if ends_early else ("several",)


def _lengths(case: Case) -> Iterator[int]:
    return (request.kv_len for step in case.steps for request in step.requests)


def _partly_filled(case: Case) -> bool:
    return any(kv_len % case.geometry.page_size for kv_len in _lengths(case))


def _full(case: Case) -> bool:
    return any(kv_len and kv_len % case.geometry.page_size == 0 for kv_len in _lengths(case))


def _idle_steps(can: "Capability") -> Iterable[str]:
    if not any(rule.edge is Edge.IDLE for rule in can.edges):
        return ("none",)
    return ("none", "no rows", *(["padding alone"] * can.padding), *(["replayed"] * bool(can.capturable)))


def _refused_idle(can: "Capability", case: Case) -> str | None:
    idle = any(step.idle for step in case.steps)
    return Edge.IDLE if idle and all(rule.edge is not Edge.IDLE for rule in can.edges) else None


def _refused_graph(can: "Capability", step: Step) -> str | None:
    graph = step.launch is not Launch.EAGER
    return f"graphs of mode {step.mode}" if graph and step.mode not in can.graph_modes else None


def _in_steps(refusal: Callable[["Capability", Step], str | None]) -> Refusal:
    return lambda can, case: next(filter(None, (refusal(can, step) for step in case.steps)), None)


def _in_requests(refusal: Callable[["Capability", Request], str | None]) -> Refusal:
    return lambda can, case: next(
        filter(None, (refusal(can, request) for step in case.steps for request in step.requests)), None
    )


_LAUNCHES = ("eager", "first replay", "replayed again", "captured late")
_PADDINGS = ("none", "tokens", "fewer requests than real", "as many requests, or more")
_PREFIXES = ("yes", "none", "fewer keys than queries")
_CHUNKS = ("no prefix", "one", "several", "one request ends early")
_NO_KEYS = "the backend does not take requests without KV"

STEPS = grouped(
    "steps",
    of_case(
        single("steps", ("one", "several of one mode", "several modes"), _steps),
        "steps",
        removable("several steps", but("one"), removals.one_step),
        filed={"several steps": but("one")},
    ),
    of_case(
        single("idle step", ("none", "no rows", "padding alone", "replayed"), _idle),
        "steps",
        removable("idle step", but("none"), removals.no_idle_steps),
        filed={"several steps": but("none"), "padded": only("padding alone", "replayed")},
        formerly={Edge.IDLE: "idle step"},
        supported=_idle_steps,
        lack="the backend does not run without requests, or not so",
        refusal=_refused_idle,
    ),
    of_steps(
        single("mode", Mode, lambda moment: moment.step.mode),
        "steps.mode",
        formerly={mode: f"mode={mode}" for mode in Mode},
        supported=lambda can: can.modes,
        lack="the backend does not have this mode",
        refusal=_in_steps(lambda can, step: None if step.mode in can.modes else f"mode {step.mode}"),
    ),
    of_steps(
        Axis("launch", _LAUNCHES, _launch),
        "steps.launch",
        removable("replay", but("eager"), removals.no_graphs),
        # A capture is a step, and consists of padding.
        filed=dict.fromkeys(("several steps", "replayed", "padded"), but("eager")),
        formerly={"replayed": "replay"},
        supported=lambda can: _LAUNCHES if can.capturable else ("eager",),
        lack="the backend is not captured in graphs",
        refusal=_in_steps(_refused_graph),
        optional=("graphs", lambda can: can.graph_modes),
    ),
    of_steps(
        single("padding", _PADDINGS, _padding),
        "steps.padded_tokens",
        removable("padding", but("none"), removals.no_padding, also="idle step=padding alone"),
        filed={"padded": but("none")},
        formerly={"padded": "padding"},
        supported=lambda can: _PADDINGS if can.padding else ("none",),
        lack="the backend is not padded",
        refusal=_in_steps(lambda can, step: "padded batches" if step.padded and not can.padding else None),
        optional=("padding", lambda can: can.padding),
    ),
)

REQUESTS = grouped(
    "requests",
    of_steps(
        classed("batch", BATCHES, lambda moment: len(moment.step.requests)),
        "steps.requests",
        size("several requests", but("1"), removals.one_request),
        filed={"several requests": but("1")},
    ),
    of_steps(
        single("without keys", ("none", "some", "all"), _without_keys),
        "steps.requests.kv_len",
        removable("empty KV", but("none"), removals.no_empty_kv),
        filed={"empty kv": but("none")},
        formerly={"empty kv": "empty KV"},
        supported=lambda can: ("none", "some", "all") if can.takes_empty_kv else ("none",),
        lack=_NO_KEYS,
        refusal=_in_requests(
            lambda can, request: (
                "queries of a request without KV"
                if request.q_len and not request.kv_len and not can.takes_empty_kv
                else None
            )
        ),
    ),
    of_steps(
        Axis("kv len", KV_LENGTHS.names, _kv_len),
        "steps.requests.kv_len",
        size("several pages", only("a page and one", "whole pages", "several pages"), removals.one_page),
        size("partly filled page", only(), removals.full_pages, present=_partly_filled),
        size("full last page", only(), removals.no_full_pages, present=_full),
        supported=lambda can: KV_LENGTHS.names if can.takes_empty_kv else KV_LENGTHS.names[1:],
        lack=_NO_KEYS,
    ),
    of_steps(
        classed("longest kv", KEYS, lambda moment: max(kv_len for _, kv_len in moment.asking)),
        "steps.requests.kv_len",
        size("several keys", only(), removals.one_key, present=lambda case: max(_lengths(case), default=0) > 1),
        size(
            f"more than {TILE} keys",
            only(),
            removals.at_most_keys(TILE),
            present=lambda case: max(_lengths(case), default=0) > TILE,
        ),
        supported=lambda can: KEYS.names if can.takes_empty_kv else KEYS.names[1:],
        lack=_NO_KEYS,
    ),
    of_steps(
        Axis("prefix", _PREFIXES, _prefix, total=False),
        "steps.requests.kv_len",
        removable("fewer keys than queries", only("fewer keys than queries"), removals.no_short_kv),
        filed={"kv < q": only("fewer keys than queries")},
        formerly={"kv < q": "fewer keys than queries"},
        supported=lambda can: _PREFIXES if can.kv_shorter_than_q else _PREFIXES[:-1],
        lack="the backend does not take fewer keys than queries",
        refusal=_in_requests(
            lambda can, request: (
                "a request with fewer keys than queries"
                if 0 < request.kv_len < request.q_len and not can.kv_shorter_than_q
                else None
            )
        ),
    ),
    of_steps(
        Axis("q lens", (_UNIFORM, "ragged", "an idle request"), _q_lens),
        "steps.requests.q_len",
        removable("ragged queries", only("ragged"), removals.equal_q_lens),
        removable("idle request", only("an idle request"), removals.no_idle_requests),
        filed={"ragged": only("ragged", "an idle request"), "idle request": only("an idle request")},
        formerly={"ragged": "ragged queries"},
    ),
    of_steps(
        classed("longest q", QUERIES, lambda moment: max(q_len for q_len, _ in moment.asking)),
        "steps.requests.q_len",
        size("several queries", but("1"), removals.one_query),
        formerly={"longest q=over 16": "longest q=17 to 64"},
    ),
    of_steps(Axis("drafts", DRAFTS.names, _drafts, total=False), "steps.tokens_per_request"),
    of_steps(Axis("accepted", ACCEPTED.names, _accepted, total=False), "steps.requests.q_len"),
    of_steps(
        single("slots", ("in order", "permuted"), _slots),
        "steps.requests.slot",
        removable("permuted slots", but("in order"), removals.slots_in_order),
    ),
    of_steps(Axis("past", ("new", "grown", "handed on"), _past), "steps.requests.slot"),
    of_steps(
        Axis("chunks", _CHUNKS, _chunks, total=False),
        "chunk_capacity",
        removable("several chunks", but("no prefix", "one"), removals.one_chunk),
        supported=lambda can: _CHUNKS if can.latent and Mode.CHUNKED_PREFILL in can.modes else (),
        lack="nothing but a chunked prefill of latents is cut into chunks",
        line="values",
    ),
)
