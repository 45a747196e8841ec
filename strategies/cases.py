"""Whole cases that a backend supports. They are valid by construction: nothing is filtered."""

from collections.abc import Iterator, Sequence
from enum import Enum, auto
from functools import cache, lru_cache
from operator import itemgetter

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from msgspec.structs import replace

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch, Pace, Step, steps_in_chunks
from attnfuzz.reference.device import Device
from attnfuzz.reference.features import TABLE
from attnfuzz.reference.features.chosen import shown_by
from attnfuzz.reference.features.classes import DRAFTS, QUERIES
from attnfuzz.reference.validity import MAX_STEPS
from attnfuzz.strategies.batch import Setting
from attnfuzz.strategies.choices import Choice, WeightedFlag, integer, odds, on
from attnfuzz.strategies.geometry import Geometries
from attnfuzz.strategies.lean import NO_LEAN, Lean
from attnfuzz.strategies.padding import draw_attention_group, draw_launches, draw_padding
from attnfuzz.strategies.rare_features import (
    draw_features,
    draw_relation,
    draw_rope,
    draw_shared_pool,
    with_call,
)
from attnfuzz.strategies.scope import Extent, scope_of
from attnfuzz.strategies.sequences import draw_life, draw_single_step, draw_unrelated_steps
from attnfuzz.strategies.serving import draw_ranks, draw_serving, draw_shared_keys
from attnfuzz.strategies.supported import drafts, may_idle, on_a_server, within
from attnfuzz.strategies.tensors import draw_family, draw_magnitude, draw_placement, draw_scales, draw_served_queries


class _Plot(Enum):
    """How the steps of a case are related. In REPLAYS, several are likely to share a graph."""

    SINGLE = auto()
    UNRELATED = auto()
    LIFE = auto()
    REPLAYS = auto()


_REPLAYED = ("launch=first replay", "launch=replayed again", "launch=captured late", "relation=replay as eager")
_PADDED = ("padding=tokens", "padding=fewer requests than real", "padding=as many requests, or more")
_SHOWN_BY_PLOTS = {
    _Plot.SINGLE: ("steps=one",),
    _Plot.UNRELATED: ("steps=several of one mode", "steps=several modes", "past=handed on", "launch=captured late"),
    _Plot.LIFE: ("steps=several of one mode", "steps=several modes", "past=grown"),
    _Plot.REPLAYS: ("steps=several of one mode", "past=handed on", *_REPLAYED),
}
_SHOWN_BY_EXTENTS = {
    Extent.FEW: ("batch=3 to 4", "longest q=9 to 16", "longest q=17 to 64"),
    Extent.LONG: ("longest kv=257 to 1000", "longest kv=over 1000"),
    Extent.WIDE: ("batch=5 to 8", "batch=9 to 16", "batch=17 to 32", "batch=over 32"),
}
_SHOWN_ON_GPUS = {Extent.FAR: ("longest kv=over 1000",)}
_PLOTS = Choice(
    (*(_Plot.SINGLE,) * 6, *(_Plot.UNRELATED,) * 4, *(_Plot.LIFE,) * 3, *(_Plot.REPLAYS,) * 5),
    _SHOWN_BY_PLOTS.__getitem__,
)
# Rare extents show no features, because they are costly: no lean may favour them.
_COMMON = (*(Extent.FEW,) * 15, *(Extent.LONG,) * 2, *(Extent.WIDE,) * 4)
_RARE = (*(Extent.FAR,) * 2, *(Extent.LONG_PROMPTS,) * 8, Extent.HUGE)
_EXTENTS = {
    Device.CPU: Choice(_COMMON * 4 + _RARE, lambda extent: _SHOWN_BY_EXTENTS.get(extent, ())),
    # GPU kernels divide a long KV among many blocks, which takes other code paths.
    Device.CUDA: Choice(
        (*_COMMON, *(Extent.FAR,) * 2) * 4 + _RARE,
        lambda extent: (_SHOWN_BY_EXTENTS | _SHOWN_ON_GPUS).get(extent, ()),
    ),
}
# A backend that schedules requests itself has to compute all of their keys.
_SCHEDULED_EXTENTS = Choice(_COMMON, lambda extent: _SHOWN_BY_EXTENTS.get(extent, ()))
# Many new tokens cost a writer little, and take other code paths.
_WRITTEN_EXTENTS = Choice(
    _COMMON * 4 + (*_RARE, *(Extent.LONG_PROMPTS,) * 12, *(Extent.HUGE,) * 3),
    lambda extent: _SHOWN_BY_EXTENTS.get(extent, ()),
)
_IN_GRAPHS = WeightedFlag(2, 3, _REPLAYED)
# Whether the rank belongs to a group that agrees on a padded size.
_IN_GROUPS = WeightedFlag(1, 2, _PADDED)
_IDLE = WeightedFlag(15, 1, ("idle step=no rows", "idle step=padding alone", "idle step=replayed"))
_IDLE_REPLAYS = WeightedFlag(1, 1, ("idle step=replayed",))
_IDLE_ROWS = Choice((0, 0, 1, 3), lambda rows: ("idle step=padding alone" if rows else "idle step=no rows",))
_IDLE_LAST = odds(1, 1)
_SEEDS = integer(0, (1 << 32) - 1)
_PACES = Choice((Pace.PROMPT,) * 7 + (Pace.LATE,), on("pace"))


@lru_cache(64)
def cases(capability: Capability, backend: str, lean: Lean = NO_LEAN) -> SearchStrategy[Case]:
    """Return a strategy of cases for the named backend, all of them valid and supported by `capability`.

    Features of `lean` are drawn more often wherever a draw decides about them; all others are still drawn. So are those
    that each case must have (`Capability.always`): cases without them are drawn again, as are those with others that no
    case may have.
    """
    if choosy := bool(capability.always or capability.never):
        lean = Lean(tuple(dict.fromkeys((*lean.features, *sorted(_needed(capability))))))
    # Hypothesis follows each example with several in which one part is copied over another, so three of four cases
    # would be near copies of the fourth. It does not do so inside a unique collection.
    free = replace(capability, always=(), never=()) if choosy else capability
    alone = st.lists(_cases(free, backend, _geometries(free), lean), min_size=1, max_size=1, unique_by=id)
    drawn = alone.map(itemgetter(0))
    return drawn.filter(lambda case: capability.why_not(case) is None) if choosy else drawn


def _needed(can: Capability) -> Iterator[str]:
    """Yield the features of coverage that show that a case has a feature of `always`."""
    for word in can.always:
        yield from shown_by(TABLE, word)


@cache
def _geometries(capability: Capability) -> Geometries:
    return Geometries(capability)


@cache
def _strides(drafts: tuple[int, ...]) -> Choice[int]:
    """Return a choice of the number of draft tokens."""
    return Choice(drafts, lambda stride: (f"drafts={DRAFTS.of(stride)}", f"longest q={QUERIES.of(stride)}"))


@st.composite
def _cases(draw: DrawFn, can: Capability, backend: str, geometries: Geometries, lean: Lean) -> Case:
    geometry, bucket = geometries.draw(draw, lean)
    extents = _WRITTEN_EXTENTS if can.writes else _SCHEDULED_EXTENTS if can.schedules else _EXTENTS[can.device]
    ranks = draw_ranks(draw, can, geometry, lean)
    scope = scope_of(draw(extents.under(lean)), geometry, can.device, writes=can.writes)
    scope = scope.of_steps(can.most_rows(geometry.q_heads, ranks))
    own = within(can, bucket)
    counts = tuple(count for count in drafts(bucket, scope.rows) if on_a_server(own, count).modes)
    stride = draw(_strides(counts).under(lean))
    served = on_a_server(own, stride)
    steps = _draw_steps(draw, Setting(served, geometry.page_size, scope, stride=stride, lean=lean))
    placement, family = draw_placement(draw, can, geometry, lean), draw_family(draw, can, lean)
    queries = draw_served_queries(draw, can, geometry, lean)
    scales = draw_scales(draw, can, geometry, family, queries, lean)
    placement["pages"] = draw_shared_pool(draw, can, geometry, scales.granularity, placement["pages"], lean)
    case = Case(
        backend=backend,
        geometry=geometry,
        steps=steps,
        **placement,
        values=family,
        magnitude=draw_magnitude(draw, can, geometry, scales, family, lean),
        scales=scales,
        queries=queries,
        rope=draw_rope(draw, can, lean),
        chunk_capacity=draw_chunk_capacity(draw, steps_in_chunks(steps, geometry), lean),
        seed=draw(_SEEDS),
        # A CPU has no queue.
        pace=draw(_PACES.under(lean)) if can.device is Device.CUDA else Pace.PROMPT,
        serving=draw_serving(draw, can, geometry, steps, placement["pages"], lean),
        shared_keys=draw_shared_keys(draw, can, ranks, steps, lean),
    )
    case = draw_features(draw, case, can, lean)
    if can.arguments or can.earlier_uses:
        case = with_call(draw, case, can, lean)
    relation = None if can.writes or can.schedules else draw_relation(draw, case, can, lean)
    return replace(case, relation=relation) if relation else case


def _draw_steps(draw: DrawFn, setting: Setting) -> tuple[Step, ...]:
    """Draw steps, launch some of them as graphs, then pad the eager ones: the order in which servers do it."""
    graph_modes = setting.can.capturable
    lean = setting.lean
    plot = _Plot.SINGLE if setting.scope.one_step else draw(_PLOTS.under(lean))
    if plot is _Plot.SINGLE:
        steps = draw_single_step(draw, setting)
    elif plot is _Plot.LIFE:
        steps = draw_life(draw, setting)
    else:
        modes = graph_modes if plot is _Plot.REPLAYS and graph_modes else setting.can.modes
        steps = draw_unrelated_steps(draw, setting, modes)
    if any(step.mode in graph_modes for step in steps) and (plot is _Plot.REPLAYS or draw(_IN_GRAPHS.under(lean))):
        steps = draw_launches(draw, steps, graph_modes, setting.scope, lean)
    steps = _with_idle(draw, setting, steps)
    if not setting.can.padding or not draw(_IN_GROUPS.under(lean)):
        return steps
    group = draw_attention_group(draw, setting.scope, lean)
    return tuple(
        draw_padding(draw, step, group, setting.scope, lean) if step.launch is Launch.EAGER and step.requests else step
        for step in steps
    )


def _with_idle(draw: DrawFn, setting: Setting, steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Add, occasionally, a step without requests in the mode of another step: without rows, or with padding alone.

    A rank with graphs replays one on padding alone.
    """
    if setting.scope.one_step or len(steps) == MAX_STEPS or not may_idle(setting.can):
        return steps
    if not draw(_IDLE.under(setting.lean)):
        return steps
    replays = [index for index, step in enumerate(steps) if step.launch is Launch.REPLAY]
    if bool(replays) and draw(_IDLE_REPLAYS.under(setting.lean)):
        at = replays[draw(integer(0, len(replays) - 1))]
        return _beside(draw, steps, at, replace(steps[at], requests=()))
    at = draw(integer(0, len(steps) - 1))
    unit = max(steps[at].tokens_per_request, 1)
    rows = draw(_IDLE_ROWS.under(setting.lean)) if setting.can.padding else 0
    rows = min(rows, setting.scope.rows // unit) * unit
    idle = replace(steps[at], requests=(), padded_tokens=rows, launch=Launch.EAGER)
    return _beside(draw, steps, at, idle)


def _beside(draw: DrawFn, steps: tuple[Step, ...], at: int, idle: Step) -> tuple[Step, ...]:
    """Add a step before or after the one at index `at`."""
    return (*steps[: at + 1], idle, *steps[at + 1 :]) if draw(_IDLE_LAST) else (*steps[:at], idle, *steps[at:])


_DEFAULT = 256
# The number of chunks of the longest prefix.
_CHUNKS = Choice(
    (1, 1, 2, 2, 3, 4, 5, 7, 12),
    lambda count: ("chunks=several", "chunks=one request ends early") if count > 1 else ("chunks=one",),
)


def draw_chunk_capacity(draw: DrawFn, chunked: Sequence[Step], lean: Lean) -> int:
    """Draw a capacity that cuts the longest prefix of these steps into a few chunks, and suffices for each step."""
    if not chunked:
        return _DEFAULT
    batch = max(len(step.requests) for step in chunked)
    longest = max(step.longest_prefix for step in chunked)
    count = draw(_CHUNKS.under(lean))
    if count == 1 and max(longest, 1) * batch <= _DEFAULT:
        return _DEFAULT
    return max(1, -(-longest // count)) * batch
