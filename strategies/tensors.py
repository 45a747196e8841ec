"""Drawing the memory layout of tensors (page tables, strides, slack, stale buffers), and their values."""

from functools import cache
from typing import TypedDict

from hypothesis.strategies import DrawFn

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import (
    BlockScales,
    Granularity,
    Guard,
    KvView,
    Magnitude,
    Outputs,
    PaddedSlot,
    PageOrder,
    Pages,
    QueryView,
    Scales,
    TableTail,
    Unused,
    ValueFamily,
    Views,
    Workspace,
)
from attnfuzz.reference.edges import EdgeRule, edge_of
from attnfuzz.reference.features.classes import (
    FACTORS,
    GAP_COLUMNS,
    MAXIMA,
    POOLS,
    QUERY_SCALES,
    SLACK_COLUMNS,
    SPARE_PAGES,
)
from attnfuzz.reference.features.numbers import families, magnitudes
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.magnitudes import magnitudes_of
from attnfuzz.reference.serving import ServedQueries
from attnfuzz.reference.validity import may_be_swizzled, may_keep_queries
from attnfuzz.strategies.choices import Choice, WeightedFlag, on
from attnfuzz.strategies.lean import Lean
from attnfuzz.strategies.supported import granularities

_PAGE_ORDERS = Choice(tuple(PageOrder), on("page order"))
# If a backend allocates pages itself, only shared prefixes and the number of pages matter.
_PAGES_GIVEN_OUT = Choice(
    (PageOrder.IDENTITY, PageOrder.SHARED_PREFIX, PageOrder.SHARED_PREFIX, PageOrder.REUSED), on("page order")
)
# (contents of the tables' tail, number of spare pages), with at least one page for a tail that points to it.
_TAILS_AND_SPARES = Choice(
    tuple((tail, spare or int(tail is TableTail.POISON)) for tail in TableTail for spare in (1, 1, 0, 2, 5, 17)),
    lambda both: (f"table tail={both[0]}", f"spare pages={SPARE_PAGES.of(both[1])}"),
)
# Sizes of a pool whose offsets exceed 2^31 or 2^32, which overflow signed or unsigned 32-bit integers.
_WIDE_POOLS = Choice((*(0,) * 40, 1 << 31, 1 << 32), on("pool", POOLS.of))
# (behind the last key, in free pages): NaN exposes more stray reads, but hides wrong numbers in the same row.
_UNUSED = Choice(
    (
        *((Unused.NAN, Unused.NAN),) * 6,
        (Unused.NUMBERS, Unused.NAN),
        (Unused.NAN, Unused.NUMBERS),
        (Unused.NUMBERS, Unused.NUMBERS),
    ),
    lambda both: (f"behind the last key={both[0]}", f"free pages={both[1]}"),
)
_TABLE_SLACK = Choice((0, 0, 1, 2, 3, 8, 31), on("table slack", SLACK_COLUMNS.of))
_TABLE_GAPS = Choice((0, 0, 0, 1, 4, 7), on("table gap", GAP_COLUMNS.of))
_NO_TABLE_GAPS = Choice((0,), on("table gap", GAP_COLUMNS.of))
_VALUE_STRIDES = WeightedFlag(2, 1, ("new values of other strides=yes",))
# (state of the workspace, contents of outputs): new buffers, and used ones.
_BUFFERS = Choice(
    tuple((workspace, outputs) for workspace in Workspace for outputs in Outputs),
    lambda both: (f"workspace={both[0]}", f"outputs={both[1]}"),
)
# Servers state the model's context length, which may be far above the needs of a batch.
_MAX_LEN_SLACK = Choice((0, 0, 0, 1, 7, 64, 1000, 131072), on("stated maxima", MAXIMA.of))
_GUARDS = Choice(tuple(Guard), on("guard"))


class TensorPlacement(TypedDict):
    """The fields of a Case that describe the memory layout of its tensors."""

    pages: Pages
    padded_slot: PaddedSlot
    views: Views
    workspace: Workspace
    outputs: Outputs
    max_len_slack: int
    guard: Guard


def draw_placement(draw: DrawFn, can: Capability, geometry: Geometry, lean: Lean) -> TensorPlacement:
    """Draw pages, views, buffers and guard of a case that `can` supports."""
    equal = geometry.head_dim_qk == geometry.head_dim_vo
    tail, spare = draw(_TAILS_AND_SPARES.under(lean))
    view = draw(_kv_view(can.kv_views, equal=equal).under(lean))
    workspace, outputs = draw(_BUFFERS.under(lean))
    behind, free = draw(_UNUSED.under(lean))
    return TensorPlacement(
        pages=Pages(
            order=draw((_PAGES_GIVEN_OUT if can.schedules else _PAGE_ORDERS).under(lean)),
            tail=tail,
            spare=spare,
            table_slack=draw(_TABLE_SLACK.under(lean)),
            hole=_draw_hole(draw, geometry, view, lean) if can.pool_holes else 0,
            behind=behind,
            free=free,
        ),
        padded_slot=draw(_padded_slot(can.padded_slots).under(lean)),
        views=Views(
            query=draw(_query_view(can.query_views).under(lean)),
            kv=view,
            table_gap=draw((_TABLE_GAPS if can.table_gaps else _NO_TABLE_GAPS).under(lean)),
            value_strides=can.value_strides and draw(_VALUE_STRIDES.under(lean)),
        ),
        workspace=workspace,
        outputs=outputs,
        max_len_slack=draw(_MAX_LEN_SLACK.under(lean)),
        guard=draw(_GUARDS.under(lean)),
    )


def _draw_hole(draw: DrawFn, geometry: Geometry, view: KvView, lean: Lean) -> int:
    """Draw the number of pages without memory before a sequence's first page in the pool."""
    elements = draw(_WIDE_POOLS.under(lean))
    pools = 2 if view is KvView.PAIRED else 1
    page = geometry.page_size * geometry.kv_heads * max(geometry.head_dim_qk, geometry.head_dim_vo) * pools
    return -(-elements // page)


@cache
def _padded_slot(slots: tuple[PaddedSlot, ...]) -> Choice[PaddedSlot]:
    return Choice(slots, on("padded slot"))


@cache
def _query_view(views: tuple[QueryView, ...]) -> Choice[QueryView]:
    return Choice(views, on("query view"))


@cache
def _kv_view(views: tuple[KvView, ...], *, equal: bool) -> Choice[KvView]:
    """Return a choice of `views`. K and V may share a pool only if their head dims are `equal`."""
    usable = tuple(view for view in views if equal or view is not KvView.PAIRED)
    return Choice(usable or (KvView.SEPARATE,), on("KV view"))


# Most checkpoints have no scale of queries, and most servers quantise their queries.
_QUERY_SCALES = Choice((1.0, 1.0, 1.0, 1.0, 0.5, 2.0), on("query scale", QUERY_SCALES.of))
_KEPT = WeightedFlag(2, 1, ("kept queries=yes",))


def draw_served_queries(draw: DrawFn, can: Capability, geometry: Geometry, lean: Lean) -> ServedQueries:
    """Draw a scale of queries, and whether they are kept, if `can` supports that."""
    return ServedQueries(
        scale=draw(_QUERY_SCALES.under(lean)) if can.query_scales else 1.0,
        kept=can.kept_queries and may_keep_queries(geometry, Scales()) and draw(_KEPT.under(lean)),
    )


# Above and below 1, exact in every dtype and not, and never each other's inverse: this exposes a scale that is applied
# twice or divided by.
_FACTORS = (1.0, 1.0, 1.0, 0.5, 1.7, 0.37)
# Drawn along with twice as many other factors.
_EDGES = (0.0, -0.6)
_AXES = {"softmax": "softmax scale", "k": "K scale", "v": "V scale"}


_POWERS = (1.0, 1.0, 0.5, 2.0)


@cache
def _power_of_two(name: str) -> Choice[float]:
    return Choice(_POWERS, on(_AXES[name], FACTORS.of))


@cache
def _factor(name: str, rules: tuple[EdgeRule, ...]) -> Choice[float]:
    """Return a choice of a factor of `Scales`, including those of 0 and below that have a rule."""
    known = {rule.edge for rule in rules}
    edges = tuple(factor for factor in _EDGES if edge_of(name, factor) in known)
    return Choice((*_FACTORS, *_FACTORS, *edges) if edges else _FACTORS, on(_AXES[name], FACTORS.of))


@cache
def _family(options: tuple[ValueFamily, ...]) -> Choice[ValueFamily]:
    return Choice((ValueFamily.NORMAL, *options), on("values"))


def draw_family(draw: DrawFn, can: Capability, lean: Lean) -> ValueFamily:
    """Draw a value family. Normal numbers are more likely than the others."""
    return draw(_family(families(can)).under(lean))


_PLAIN_OF = 4
"""Weight of plain magnitudes, relative to each of the others."""


@cache
def _magnitude(options: tuple[Magnitude, ...]) -> Choice[Magnitude]:
    return Choice((Magnitude.PLAIN,) * _PLAIN_OF * len(options) + options, on("magnitude"))


def draw_magnitude(
    draw: DrawFn, can: Capability, geometry: Geometry, scales: Scales, family: ValueFamily, lean: Lean
) -> Magnitude:
    """Draw a magnitude of q, K and V that `can` supports. Plain ones are much more likely than the others."""
    possible = magnitudes_of(geometry, scales, family)
    options = tuple(each for each in magnitudes(can) if each in possible and each is not Magnitude.PLAIN)
    return draw(_magnitude(options).under(lean)) if options else Magnitude.PLAIN


@cache
def _granularity(options: tuple[Granularity, ...]) -> Choice[Granularity]:
    return Choice(options, on("scales per"))


@cache
def _block_scales(options: tuple[BlockScales, ...]) -> Choice[BlockScales]:
    return Choice(options, on("scales of blocks"))


def draw_scales(
    draw: DrawFn, can: Capability, geometry: Geometry, family: ValueFamily, queries: ServedQueries, lean: Lean
) -> Scales:
    """Draw a softmax scale, and scales of K and V, or their granularity, if `can` supports them for such caches."""
    softmax = 1.0 if can.writes else draw(_factor("softmax", can.edges).under(lean))
    granularity, blocks = Granularity.TENSOR, BlockScales.LINEAR
    if geometry.kv_dtype is not geometry.dtype and can.granularities != (Granularity.TENSOR,):
        granularity = draw(_granularity(granularities(can, family)).under(lean))
        if granularity in (Granularity.HEAD, Granularity.TOKEN_HEAD):
            return Scales(softmax=softmax, granularity=granularity)
        if len(can.block_scales) > 1 and may_be_swizzled(geometry, granularity):
            blocks = draw(_block_scales(can.block_scales).under(lean))
        elif granularity is Granularity.BLOCK:
            blocks = can.block_scales[0]
    if not can.scales(geometry.kv_dtype):
        return Scales(softmax=softmax, granularity=granularity, blocks=blocks)
    # Tensors of scales have no factors of 0 and below.
    edges = can.edges if granularity is Granularity.TENSOR else ()
    factors = (_power_of_two(name) if queries.kept else _factor(name, edges) for name in ("k", "v"))
    k, v = (draw(factor.under(lean)) for factor in factors)
    return Scales(softmax=softmax, k=k, v=v, granularity=granularity, blocks=blocks)
