"""Cases of sparse attention: geometries and steps as in serving, sized so that a case takes milliseconds."""

from functools import cache
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from msgspec.structs import replace

from attnfuzz.reference.case import Guard, Outputs, ValueFamily
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import (
    FIXED_DIMS,
    OF_PRODUCTS,
    KvFormat,
    ListOrder,
    Scores,
    SparseCase,
    SparseGeometry,
    SparseMode,
    SparseOp,
    SparseRequest,
    SparseStep,
    Tail,
)
from attnfuzz.strategies.choices import choice, integer, odds

_PAGES = (16, 16, 64, 64, 1, 4, 8, 32, 128, 24)
_HEADS = (1, 2, 3, 4, 4, 8, 8, 16, 20)
_INDEX_DIMS = (8, 12, 32, 32, 64, 128, 128)
_TOP_KS = (1, 2, 3, 7, 8, 16, 16, 31, 64, 64, 65, 128, 130, 200)
_LARGE_TOP_KS = (512, 1024, 2048)
_DIMS = ((8, 8), (16, 16), (32, 32), (64, 64), (24, 8), (128, 128))
_LATENT_DIMS = ((24, 16), (48, 32), (80, 64), (576, 512))
_RATIOS = (4, 4, 128, 2, 8)
_SECONDS = (0, 0, 1, 4, 16, 70)
_DRAFTS = (2, 2, 3, 4, 5, 8)
_MOST_PADDING = 4
_SEEDS = (1 << 31) - 1

# A product takes about a nanosecond in our kernels: a case stays below a tenth of a second.
_MOST_PRODUCTS = 1 << 25


@st.composite
def _cases(draw: DrawFn, can: SparseCapability, backend: str) -> SparseCase:
    ops = draw(choice(_weighed(can.chains)))
    geometry = _geometry(draw, can, ops)
    long = _long(draw, ops)
    steps = tuple(_step(draw, can, ops, geometry, long) for _ in range(1 if long else draw(choice((1, 1, 2, 3)))))
    if geometry.top_k > _TOP_KS[-1] and not long:
        geometry = replace(geometry, top_k=draw(choice(_among(_TOP_KS, can.top_ks))))
    products = SparseOp.LOGITS in ops or SparseOp.WRITE in ops
    lists = SparseOp.ATTENTION in ops and SparseOp.TRANSFORM not in ops
    made = SparseOp.TRANSFORM in ops and SparseOp.TOP_K not in ops
    orders = (*ListOrder,) if lists else (*ListOrder,) if made else (ListOrder.RECENT,)
    # Most mistakes in products show in different numbers.
    scores = (
        (*OF_PRODUCTS, Scores.NORMAL, Scores.NORMAL)
        if products
        else (*Scores,)
        if SparseOp.TOP_K in ops
        else (Scores.NORMAL,)
    )
    tails = tuple(each for each in can.tails if geometry.counts or each is not Tail.OTHER_SLOTS)
    # Numbers of uneven size are for writers, and overflow products.
    values = can.values if ops == (SparseOp.WRITE,) else tuple(x for x in can.values if x is not ValueFamily.UNEVEN)
    return SparseCase(
        backend=backend,
        ops=ops,
        steps=steps,
        geometry=geometry,
        scores=draw(choice(_supported(scores, can.scores))),
        values=draw(choice(values)) if draw(odds(1, 1)) else values[0],
        order=draw(choice(_supported(orders, can.orders))),
        tail=draw(choice(tails)) if SparseOp.ATTENTION in ops else tails[0],
        slack=draw(choice((0, 0, 1, 5))),
        backwards=draw(odds(3, 1)),
        gap=draw(choice((0, 0, 0, 1, 4, 16))) if can.gaps else 0,
        seed=draw(integer(0, _SEEDS)),
        guard=draw(choice(tuple(Guard))),
        outputs=draw(choice(tuple(Outputs))),
    )


def cases(can: SparseCapability, backend: str) -> SearchStrategy[SparseCase]:
    """Return a strategy of cases that a capability covers, for the named backend."""
    return _cases(can, backend)


def _supported(options: tuple[Any, ...], can: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each for each in options if each in can) or can[:1]


def _among(options: tuple[Any, ...], limits: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the options within limits, or the limits themselves where no option is."""
    return (tuple(each for each in options if each in limits) or limits) if limits else options


@cache
def _weighed(chains: tuple[tuple[SparseOp, ...], ...]) -> tuple[tuple[SparseOp, ...], ...]:
    """Repeat the longest chain, which runs most ops in one case, the top-k of drawn scores, and ops of no chain."""
    longest = max(chains, key=len)
    odd = tuple(each for each in chains if SparseOp.TOP_K in each and SparseOp.LOGITS not in each)
    others = tuple(each for each in chains if not set(each) <= set(longest))
    return (longest,) * (len(chains) // 2) + chains + odd + others


def _long(draw: DrawFn, ops: tuple[SparseOp, ...]) -> bool:
    """Return whether a case has one request of thousands of keys."""
    return (SparseOp.TOP_K in ops or SparseOp.LOGITS in ops) and draw(odds(6, 1))


def _geometry(draw: DrawFn, can: SparseCapability, ops: tuple[SparseOp, ...]) -> SparseGeometry:
    kind = draw(choice(can.formats)) if SparseOp.ATTENTION in ops else can.formats[0]
    heads, kv_heads = draw(choice(_among(_HEADS, can.heads))), 1
    if kind is KvFormat.HEADS:
        kv_heads = draw(choice(tuple(each for each in (1, 1, 2, 4) if heads % each == 0)))
    dims = _DIMS if kind is KvFormat.HEADS else _LATENT_DIMS
    dim, value_dim = FIXED_DIMS.get(kind) or draw(choice(_among(dims, can.dims)))
    second = draw(choice(_SECONDS)) if True in can.seconds else 0
    if not second and False not in can.seconds:
        second = _SECONDS[-1]
    return SparseGeometry(
        page_size=draw(choice(_among(_PAGES, can.page_sizes))),
        index_heads=draw(choice(_among(_HEADS, can.heads))),
        index_dim=draw(choice(_among(_INDEX_DIMS, can.index_dims))),
        top_k=draw(choice(_among((*_TOP_KS, *_LARGE_TOP_KS), can.top_ks))),
        format=kind,
        query_heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        value_dim=value_dim,
        sinks=draw(choice(can.sinks)),
        second=second,
        counts=draw(choice(can.counts)),
        ragged=draw(choice(can.ragged)),
        powers=draw(choice(can.powers)),
        ratio=draw(choice(_among(_RATIOS, can.ratios))) if SparseOp.COMPRESS in ops else 4,
    )


def _step(
    draw: DrawFn, can: SparseCapability, ops: tuple[SparseOp, ...], geometry: SparseGeometry, long: bool
) -> SparseStep:
    modes = tuple(mode for mode in (*can.modes, *can.modes) if mode is not SparseMode.IDLE)
    idle = (SparseMode.IDLE,) if SparseMode.IDLE in can.modes else ()
    mode = draw(choice((*modes, *idle)))
    replayed = mode.batched and can.replays and draw(odds(2, 1))
    padding = draw(choice((0, 0, 1, 2, _MOST_PADDING))) if can.padding else 0
    if mode is SparseMode.IDLE:
        return SparseStep(mode=mode, padding=max(padding, int(replayed)), replayed=replayed)
    queries = {SparseMode.DECODE: 1, SparseMode.VERIFY: draw(choice(_DRAFTS))}.get(mode, 0)
    batch = 1 if long else draw(choice((1, 1, 2, 2, 3, 5)))
    room = _room(ops, geometry) // batch
    requests = tuple(_request(draw, can, mode, queries, room, geometry, long) for _ in range(batch))
    return SparseStep(mode=mode, requests=requests, padding=padding, replayed=replayed)


def _room(ops: tuple[SparseOp, ...], geometry: SparseGeometry) -> int:
    """Return how many pairs of a query and a key the requests of a step may have."""
    cost = 1
    if SparseOp.LOGITS in ops:
        cost += geometry.index_heads * geometry.index_dim
    if SparseOp.ATTENTION in ops:
        # Its lists are shorter than long requests, but their keys are drawn.
        cost += geometry.query_heads * (geometry.dim + geometry.value_dim)
    return _MOST_PRODUCTS // cost


_LONG = ((2_000, 2_100), (2_049, 2_600), (4_090, 5_000), (8_000, 9_000), (30_000, 40_000), (120_000, 131_072))


def _request(
    draw: DrawFn, can: SparseCapability, mode: SparseMode, queries: int, room: int, geometry: SparseGeometry, long: bool
) -> SparseRequest:
    if long:
        low, high = draw(choice(_LONG))
        most = min(can.longest, room // max(queries, 1))
        keys = draw(integer(min(low, most), min(high, most)))
        q_len = queries or 1
        return SparseRequest(q_len, keys) if mode is not SparseMode.PREFILL else SparseRequest(8, 8)
    size, top_k = geometry.page_size, min(geometry.top_k, 300)
    about = draw(choice((1, 2, size, 2 * size, top_k, top_k + 1, 40, 90, 2 * top_k + 5)))
    keys = max(1, draw(integer(max(about - 2, 1), about + 3)))
    if mode is SparseMode.PREFILL:
        keys = max(1, min(keys, int(room**0.5), 48))
        return SparseRequest(keys, keys)
    if mode is SparseMode.EXTEND:
        keys = min(keys, 400, can.longest)
        return SparseRequest(max(1, min(draw(integer(1, 24)), keys, room // keys)), keys)
    keys = max(keys, queries)
    return SparseRequest(queries, max(queries, min(keys, room // queries, can.longest)))
