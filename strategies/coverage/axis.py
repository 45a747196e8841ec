"""The axes of the case space, and the values of a case, or of each step that runs, on them."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from attnfuzz.reference.arguments import ArgumentForm, EarlierUse
from attnfuzz.reference.case import (
    BlockScales,
    Case,
    Granularity,
    Guard,
    Interleave,
    KvView,
    Launch,
    Magnitude,
    Mask,
    Mode,
    OtherGroup,
    Outputs,
    Pace,
    PaddedSlot,
    PageOrder,
    QueryView,
    Step,
    TableTail,
    Tombstone,
    Unused,
    ValueFamily,
    Workspace,
)
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.masks import applies
from attnfuzz.reference.relation import Relation
from attnfuzz.reference.rope import Pairing, RopeScaling, RotaryShare
from attnfuzz.reference.shared_pools import pages_left
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
    LIMITS,
    MAXIMA,
    PAGE_SIZES,
    POOLS,
    QUERIES,
    QUERY_SCALES,
    ROTARY_SHIFTS,
    ROTARY_THETAS,
    SLACK_COLUMNS,
    SPARE_PAGES,
    VALUE_DIMS,
    Classes,
    Kinds,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Axis(Generic[T]):
    """A dimension of cases or steps. `values` are in a natural order, with the plain one first if there is one.

    `place` returns the values that hold for a case or a step. There may be several, such as the KV lengths of a batch,
    or none if the axis does not apply, unless it is `total`.
    """

    name: str
    values: tuple[str, ...]
    place: Callable[[T], Iterable[str]]
    total: bool = True

    def feature(self, value: str) -> str:
        """Return the feature of a value on this axis, such as "mode=decode"."""
        return f"{self.name}={value}"

    @property
    def features(self) -> tuple[str, ...]:
        """The features of this axis, in the order of its values."""
        return tuple(map(self.feature, self.values))


FEW_RANKS = 2
"""The smallest number of ranks that share keys."""

_TENSOR_ARGUMENTS, _OTHER_ARGUMENTS = "tensor argument", "other argument"


def axis_of_form(form: ArgumentForm) -> str:
    """Return the name of the axis of an argument form."""
    return _TENSOR_ARGUMENTS if form.of_tensor else _OTHER_ARGUMENTS


def single(name: str, values: tuple[str, ...], place: Callable[[T], str]) -> Axis[T]:
    """Return an axis with exactly one value for every case or step."""
    return Axis(name, values, lambda subject: (place(subject),))


def classed(name: str, classes: Classes | Kinds, measure: Callable[[T], Any]) -> Axis[T]:
    """Return an axis of the classes of a number that `measure` takes from a case or a step."""
    return single(name, classes.names, lambda subject: classes.of(measure(subject)))


@dataclass(frozen=True, slots=True)
class Moment:
    """A step that runs, in the context of its case.

    `asking` has the (q_len, kv_len) of the requests with queries. `prefixes` has the number of keys that each sequence
    had before its new tokens in the last step that used it. `replayed`: its graph has run before. `captured_late`:
    another step ran before its graph was captured.
    """

    case: Case
    step: Step
    asking: tuple[tuple[int, int], ...]
    prefixes: dict[int, int]
    replayed: bool
    captured_late: bool


def moments_of(case: Case) -> Iterator[Moment]:
    """Yield the steps that run with requests, in order."""
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
        if step.idle:
            ran = True
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


def _idle(case: Case) -> str:
    idle = [step for step in case.steps if step.idle]
    if any(step.launch is Launch.REPLAY for step in idle):
        return "replayed"
    return "none" if not idle else "padding alone" if any(step.padded_tokens for step in idle) else "no rows"


def _relation(case: Case) -> str:
    return "none" if case.relation is None else case.relation.words


def _arguments(name: str) -> Axis[Case]:
    """Return an axis of argument forms: those of tensors, or all others."""

    def forms_in(forms: Iterable[ArgumentForm]) -> tuple[str, ...]:
        return tuple(form for form in forms if axis_of_form(form) == name)

    return Axis(name, ("plain", *forms_in(ArgumentForm)), lambda case: forms_in(case.arguments) or ("plain",))


def _has(present: bool) -> str:
    return "yes" if present else "none"


_DTYPES = (DType.BFLOAT16, DType.FLOAT16, DType.FLOAT32)

GEOMETRY_AXES: tuple[Axis[Case], ...] = (
    classed("KV heads", KV_HEADS, lambda case: case.geometry.kv_heads),
    classed("group", GROUPS, lambda case: case.geometry.group),
    classed("head dim", HEAD_DIMS, lambda case: case.geometry.head_dim_qk),
    single("V dim", VALUE_DIMS.names, lambda case: VALUE_DIMS.of(case.geometry.head_dim_qk, case.geometry.head_dim_vo)),
    classed("latent", LATENTS, lambda case: case.geometry.latent),
    classed("page size", PAGE_SIZES, lambda case: case.geometry.page_size),
    single("dtype", _DTYPES, lambda case: case.geometry.dtype),
    classed("KV dtype", KV_DTYPES, lambda case: case.geometry.kv_dtype),
    single("layout", tuple(KvLayout), lambda case: case.geometry.kv_layout),
    single("sinks", ("none", "yes"), lambda case: _has(case.geometry.sinks)),
    single("soft cap", ("none", "yes"), lambda case: _has(case.geometry.soft_cap > 0)),
)

CASE_AXES: tuple[Axis[Case], ...] = (
    single("steps", ("one", "several of one mode", "several modes"), _steps),
    single("idle step", ("none", "no rows", "padding alone", "replayed"), _idle),
    *GEOMETRY_AXES,
    classed("softmax scale", FACTORS, lambda case: case.scales.softmax),
    classed("K scale", FACTORS, lambda case: case.scales.k),
    classed("V scale", FACTORS, lambda case: case.scales.v),
    single("scales per", tuple(Granularity), lambda case: case.scales.granularity),
    single("scales of blocks", tuple(BlockScales), lambda case: case.scales.blocks),
    classed("query scale", QUERY_SCALES, lambda case: case.queries.scale),
    single("kept queries", ("none", "yes"), lambda case: _has(case.queries.kept)),
    single("ranks", ("up to two", "four"), lambda case: "four" if case.shared_keys.ranks > FEW_RANKS else "up to two"),
    single("interleave", tuple(Interleave), lambda case: case.shared_keys.interleave),
    single("all to all", ("none", "yes"), lambda case: _has(case.shared_keys.all_to_all)),
    single("values", tuple(ValueFamily), lambda case: case.values),
    single("magnitude", tuple(Magnitude), lambda case: case.magnitude),
    single("page order", tuple(PageOrder), lambda case: case.pages.order),
    single("table tail", tuple(TableTail), lambda case: case.pages.tail),
    classed("table slack", SLACK_COLUMNS, lambda case: case.pages.table_slack),
    classed("table gap", GAP_COLUMNS, lambda case: case.views.table_gap),
    classed("spare pages", SPARE_PAGES, lambda case: case.pages.spare),
    classed("pool", POOLS, lambda case: case.pages.hole),
    single("behind the last key", tuple(Unused), lambda case: case.pages.behind),
    single("free pages", tuple(Unused), lambda case: case.pages.free),
    single("other group", tuple(OtherGroup), lambda case: case.pages.other_group),
    single("padded slot", tuple(PaddedSlot), lambda case: case.padded_slot),
    single("rotary share", ("none", *RotaryShare), lambda case: case.rope.share if case.rope else "none"),
    single("rotary pairing", ("none", *Pairing), lambda case: case.rope.pairing if case.rope else "none"),
    classed("rotary theta", ROTARY_THETAS, lambda case: case.rope),
    classed("rotary shift", ROTARY_SHIFTS, lambda case: case.rope),
    single("rotary scaling", tuple(RopeScaling), lambda case: case.rope.scaling if case.rope else RopeScaling.NONE),
    single("query view", tuple(QueryView), lambda case: case.views.query),
    single("KV view", tuple(KvView), lambda case: case.views.kv),
    single("workspace", tuple(Workspace), lambda case: case.workspace),
    single("outputs", tuple(Outputs), lambda case: case.outputs),
    classed("stated maxima", MAXIMA, lambda case: case.max_len_slack),
    classed("token budget", LIMITS, lambda case: case.serving.budget),
    classed("lacking pages", LIMITS, lambda case: case.serving.shortage),
    classed("asynchronous", LIMITS, lambda case: case.serving.asynchronous),
    single("guard", tuple(Guard), lambda case: case.guard),
    single("pace", tuple(Pace), lambda case: case.pace),
    _arguments(_TENSOR_ARGUMENTS),
    _arguments(_OTHER_ARGUMENTS),
    Axis("life", ("new", *EarlierUse), lambda case: case.life or ("new",)),
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


def _window(moment: Moment) -> str:
    left = moment.case.geometry.window_left
    if left < 0:
        return "none"
    if left == 0:
        return "a query's own key"
    return "cuts keys off" if any(kv_len > left + 1 for _, kv_len in moment.asking) else "longer than all keys"


def _tombstones(moment: Moment) -> str:
    case = moment.case
    left = any(pages_left(case, q_len, kv_len) for q_len, kv_len in moment.asking)
    return case.pages.tombstone if left else Tombstone.NONE


def _window_tail(moment: Moment) -> str:
    """Return whether new tokens leave the window within the step."""
    case, size = moment.case, moment.case.geometry.page_size
    asking = moment.asking if case.pages.window_tail else ()
    return _has(any(pages_left(case, q_len, kv_len) * size > kv_len - q_len for q_len, kv_len in asking))


STEP_AXES: tuple[Axis[Moment], ...] = (
    single("mode", tuple(Mode), lambda moment: moment.step.mode),
    Axis("launch", ("eager", "first replay", "replayed again", "captured late"), _launch),
    single("padding", ("none", "tokens", "fewer requests than real", "as many requests, or more"), _padding),
    classed("batch", BATCHES, lambda moment: len(moment.step.requests)),
    single("without keys", ("none", "some", "all"), _without_keys),
    Axis("kv len", KV_LENGTHS.names, _kv_len),
    classed("longest kv", KEYS, lambda moment: max(kv_len for _, kv_len in moment.asking)),
    Axis("prefix", ("yes", "none", "fewer keys than queries"), _prefix, total=False),
    Axis("q lens", (_UNIFORM, "ragged", "an idle request"), _q_lens),
    classed("longest q", QUERIES, lambda moment: max(q_len for q_len, _ in moment.asking)),
    Axis("drafts", DRAFTS.names, _drafts, total=False),
    Axis("accepted", ACCEPTED.names, _accepted, total=False),
    single("slots", ("in order", "permuted"), _slots),
    Axis("past", ("new", "grown", "handed on"), _past),
    Axis("chunks", ("no prefix", "one", "several", "one request ends early"), _chunks, total=False),
    single("window", ("none", "a query's own key", "cuts keys off", "longer than all keys"), _window),
    single("mask", tuple(Mask), lambda moment: moment.case.mask if applies(moment.case, moment.step) else Mask.CAUSAL),
    single("tombstones", tuple(Tombstone), _tombstones),
    single("window tail", ("none", "yes"), _window_tail),
)
