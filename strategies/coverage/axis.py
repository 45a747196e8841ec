"""The axes of the case space, and how a case, or each step of it that runs, is placed on them."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Generic, TypeVar

from attnfuzz.reference.case import (
    Case,
    Guard,
    KvView,
    Launch,
    Mode,
    Outputs,
    PageOrder,
    QueryView,
    Step,
    TableTail,
    ValueFamily,
    Workspace,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.relation import Relation
from attnfuzz.strategies.coverage.classes import (
    ACCEPTED,
    BATCHES,
    DRAFTS,
    FACTORS,
    GAP_COLUMNS,
    GROUPS,
    HEAD_DIMS,
    KEYS,
    KV_DTYPES,
    KV_HEADS,
    KV_LENGTHS,
    LATENTS,
    MAXIMA,
    PAGE_SIZES,
    QUERIES,
    SLACK_COLUMNS,
    SPARE_PAGES,
    VALUE_DIMS,
    accepted_class,
    factor_class,
    group_class,
    head_dim_class,
    kv_dtype_class,
    kv_length_class,
    latent_class,
    page_size_class,
    value_dim_class,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Axis(Generic[T]):
    """One way in which cases (or steps) differ: `values` in a natural order, the plain one first where there is one.

    `place` gives the values that hold for a case or a step. There may be several, as for the KV lengths of a batch;
    there are none where the axis does not apply, unless it is `total`.
    """

    name: str
    values: tuple[str, ...]
    place: Callable[[T], Iterable[str]]
    total: bool = True

    def feature(self, value: str) -> str:
        """The feature that stands for a value of this axis, as in "mode=decode"."""
        return f"{self.name}={value}"

    @property
    def features(self) -> tuple[str, ...]:
        """The features of this axis, in its order."""
        return tuple(map(self.feature, self.values))


def single(name: str, values: tuple[str, ...], place: Callable[[T], str]) -> Axis[T]:
    """An axis on which everything has exactly one value."""
    return Axis(name, values, lambda subject: (place(subject),))


@dataclass(frozen=True, slots=True)
class Moment:
    """A step that runs, where it stands in its case.

    `asking` has the (q_len, kv_len) of the requests that have queries, `prefixes` how many keys each slot had before
    its new tokens when it was last used. `replayed` says whether its graph has run before, `captured_late` whether
    something else has run before its graph was captured.
    """

    case: Case
    step: Step
    asking: tuple[tuple[int, int], ...]
    prefixes: dict[int, int]
    replayed: bool
    captured_late: bool


def moments_of(case: Case) -> Iterator[Moment]:
    """The steps that run, in order."""
    prefixes: dict[int, int] = {}
    replayed: set[tuple[Mode, int]] = set()
    late: set[tuple[Mode, int]] = set()
    ran = False
    for step in case.steps:
        graph = (step.mode, step.padded_tokens)
        if step.launch is Launch.CAPTURE:
            if ran:
                late.add(graph)
            continue
        replay = step.launch is Launch.REPLAY
        asking = tuple((request.q_len, request.kv_len) for request in step.requests if request.q_len)
        yield Moment(case, step, asking, prefixes.copy(), replay and graph in replayed, replay and graph in late)
        ran = True
        if replay:
            replayed.add(graph)
        for request in step.requests:
            prefixes[request.slot] = request.kv_len - request.q_len


def _steps(case: Case) -> str:
    running = [step for step in case.steps if step.launch is not Launch.CAPTURE]
    if len(running) == 1:
        return "one"
    return "several modes" if len({step.mode for step in running}) > 1 else "several of one mode"


def _relation(case: Case) -> str:
    return "none" if case.relation is None else case.relation.words


def _has(present: bool) -> str:
    return "yes" if present else "none"


_DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)

GEOMETRY_AXES: tuple[Axis[Case], ...] = (
    single("KV heads", KV_HEADS.names, lambda case: KV_HEADS.of(case.geometry.kv_heads)),
    single("group", GROUPS, lambda case: group_class(case.geometry.group)),
    single("head dim", HEAD_DIMS, lambda case: head_dim_class(case.geometry.head_dim_qk)),
    single("V dim", VALUE_DIMS, lambda case: value_dim_class(case.geometry.head_dim_qk, case.geometry.head_dim_vo)),
    single("latent", LATENTS, lambda case: latent_class(case.geometry.latent)),
    single("page size", PAGE_SIZES, lambda case: page_size_class(case.geometry.page_size)),
    single("dtype", tuple(dtype.value for dtype in _DTYPES), lambda case: case.geometry.dtype.value),
    single("KV dtype", KV_DTYPES, lambda case: kv_dtype_class(case.geometry.kv_dtype)),
    single("layout", tuple(each.value for each in KvLayout), lambda case: case.geometry.kv_layout.value),
    single("sinks", ("none", "yes"), lambda case: _has(case.geometry.sinks)),
    single("soft cap", ("none", "yes"), lambda case: _has(case.geometry.soft_cap > 0)),
)

CASE_AXES: tuple[Axis[Case], ...] = (
    single("steps", ("one", "several of one mode", "several modes"), _steps),
    *GEOMETRY_AXES,
    single("softmax scale", FACTORS, lambda case: factor_class(case.scales.softmax)),
    single("K scale", FACTORS, lambda case: factor_class(case.scales.k)),
    single("V scale", FACTORS, lambda case: factor_class(case.scales.v)),
    single("values", tuple(each.value for each in ValueFamily), lambda case: case.values.value),
    single("page order", tuple(each.value for each in PageOrder), lambda case: case.pages.order.value),
    single("table tail", tuple(each.value for each in TableTail), lambda case: case.pages.tail.value),
    single("table slack", SLACK_COLUMNS.names, lambda case: SLACK_COLUMNS.of(case.pages.table_slack)),
    single("table gap", GAP_COLUMNS.names, lambda case: GAP_COLUMNS.of(case.views.table_gap)),
    single("spare pages", SPARE_PAGES.names, lambda case: SPARE_PAGES.of(case.pages.spare)),
    single("query view", tuple(each.value for each in QueryView), lambda case: case.views.query.value),
    single("KV view", tuple(each.value for each in KvView), lambda case: case.views.kv.value),
    single("workspace", tuple(each.value for each in Workspace), lambda case: case.workspace.value),
    single("outputs", tuple(each.value for each in Outputs), lambda case: case.outputs.value),
    single("stated maxima", MAXIMA.names, lambda case: MAXIMA.of(case.max_len_slack)),
    single("guard", tuple(each.value for each in Guard), lambda case: case.guard.value),
    single("relation", ("none", *(each.words for each in Relation)), _relation),
)


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
    chunks = step.chunks(moment.case.chunk_capacity)
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
    single("batch", BATCHES.names, lambda moment: BATCHES.of(len(moment.step.requests))),
    single("without keys", ("none", "some", "all"), _without_keys),
    Axis("kv len", KV_LENGTHS, _kv_len),
    single("longest kv", KEYS.names, lambda moment: KEYS.of(max(kv_len for _, kv_len in moment.asking))),
    Axis("prefix", ("yes", "none", "fewer keys than queries"), _prefix, total=False),
    Axis("q lens", (_UNIFORM, "ragged", "an idle request"), _q_lens),
    single("longest q", QUERIES.names, lambda moment: QUERIES.of(max(q_len for q_len, _ in moment.asking))),
    Axis("drafts", DRAFTS.names, _drafts, total=False),
    Axis("accepted", ACCEPTED, _accepted, total=False),
    single("slots", ("in order", "permuted"), _slots),
    Axis("past", ("new", "grown", "handed on"), _past),
    Axis("chunks", ("no prefix", "one", "several", "one request ends early"), _chunks, total=False),
    single("window", ("none", "a query's own key", "cuts keys off", "longer than all keys"), _window),
)
