"""Cases of sparse attention: geometries and steps as in serving, sized so that a case takes milliseconds."""

from functools import cache

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from msgspec.structs import replace

from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import (
    FIXED_DIMS,
    KvFormat,
    SparseCase,
    SparseGeometry,
    SparseMode,
    SparseOp,
    SparseRequest,
    SparseStep,
    Tail,
)
from attnfuzz.reference.sparse.features import page_class, top_k_class
from attnfuzz.strategies.choices import Choice, Draws, on, yes
from attnfuzz.strategies.lean import NO_LEAN, Lean
from attnfuzz.strategies.sparse_space import (
    SHORT_LISTS,
    SPARSE_SPACE,
    among,
    lists,
    may_be_long,
    options_of,
    pages,
    short_lists,
)

_HEADS = (1, 2, 3, 4, 4, 8, 8, 16, 20)
_INDEX_DIMS = (8, 12, 32, 32, 64, 128, 128)
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
def _cases(draw: DrawFn, can: SparseCapability, backend: str, lean: Lean) -> SparseCase:
    draws = Draws(draw, lean)
    ops = draws.draw(_chains(can.chains).under(lean))
    geometry = _geometry(draws, can, ops)
    long = _long(draws, ops)
    steps = tuple(_step(draws, can, ops, geometry, long) for _ in range(1 if long else draws.option((1, 1, 2, 3))))
    if geometry.top_k > SHORT_LISTS[-1] and not long:
        geometry = replace(geometry, top_k=draws.of("list", short_lists(can), top_k_class))
    options = options_of(can, ops)
    tails = tuple(each for each in can.tails if geometry.counts or each is not Tail.OTHER_SLOTS)
    return SparseCase(
        backend=backend,
        ops=ops,
        steps=steps,
        geometry=geometry,
        scores=draws.of("scores", options.scores),
        values=draws.of("values", (*options.values, *options.values[:1] * len(options.values))),
        order=draws.of("order", options.orders),
        tail=draws.of("tail", tails) if SparseOp.ATTENTION in ops else tails[0],
        slack=draws.of("slack", (0, 0, 1, 5), yes),
        backwards=draws.flag("backwards", 3, 1),
        gap=draws.of("gap", (0, 0, 0, 1, 4, 16), yes) if can.gaps else 0,
        seed=draws.integer(0, _SEEDS),
        guard=draws.of("guard", tuple(Guard)),
        outputs=draws.of("outputs", tuple(Outputs)),
    )


def cases(can: SparseCapability, backend: str, lean: Lean = NO_LEAN) -> SearchStrategy[SparseCase]:
    """Return a strategy of cases that a capability covers, of which those that show `lean` are drawn more often."""
    return _cases(can, backend, lean)


@cache
def _weighed(chains: tuple[tuple[SparseOp, ...], ...]) -> tuple[tuple[SparseOp, ...], ...]:
    """Repeat the longest chain, which runs most ops in one case, the top-k of drawn scores, and ops of no chain."""
    longest = max(chains, key=len)
    odd = tuple(each for each in chains if SparseOp.TOP_K in each and SparseOp.LOGITS not in each)
    others = tuple(each for each in chains if not set(each) <= set(longest))
    return (longest,) * (len(chains) // 2) + chains + odd + others


@cache
def _chains(chains: tuple[tuple[SparseOp, ...], ...]) -> Choice[tuple[SparseOp, ...]]:
    return Choice(_weighed(chains), lambda ops: tuple(f"op={op}" for op in ops))


@cache
def _modes(modes: tuple[SparseMode, ...], can: SparseCapability) -> Choice[SparseMode]:
    """Return a choice of modes, each of which shows itself and all features that are possible with it."""
    return Choice(modes, lambda mode: SPARSE_SPACE.beside(f"mode={mode}", can))


@cache
def _numbers_of_keys(page_size: int, top_k: int) -> Choice[int]:
    """Return a choice of numbers of keys near edges of pages and lists."""
    near = (1, 2, page_size, 2 * page_size, top_k, top_k + 1, 40, 90, 2 * top_k + 5)
    return Choice(near, on("keys", lambda keys: "up to k" if keys <= top_k else "above k"))


def _length(long: object) -> str:
    return "above 2048" if long else "up to 2048"


def _long(draws: Draws, ops: tuple[SparseOp, ...]) -> bool:
    """Return whether a case has one request of thousands of keys."""
    return may_be_long(ops) and draws.of("length", (False,) * 6 + (True,), _length)


def _geometry(draws: Draws, can: SparseCapability, ops: tuple[SparseOp, ...]) -> SparseGeometry:
    kind = draws.of("format", can.formats) if SparseOp.ATTENTION in ops else can.formats[0]
    heads, kv_heads = draws.option(among(_HEADS, can.heads)), 1
    if kind is KvFormat.HEADS:
        kv_heads = draws.option(tuple(each for each in among((1, 1, 2, 4), can.kv_heads) if heads % each == 0))
    dims = _DIMS if kind is KvFormat.HEADS else _LATENT_DIMS
    dim, value_dim = FIXED_DIMS.get(kind) or draws.option(among(dims, can.dims))
    second = draws.of("second list", _SECONDS, yes) if True in can.seconds else 0
    if not second and False not in can.seconds:
        second = _SECONDS[-1]
    return SparseGeometry(
        page_size=draws.of("page", pages(can), page_class),
        index_heads=draws.option(among(_HEADS, can.heads)),
        index_dim=draws.option(among(_INDEX_DIMS, can.index_dims)),
        top_k=draws.of("list", lists(can), top_k_class),
        format=kind,
        query_heads=heads,
        kv_heads=kv_heads,
        dim=dim,
        value_dim=value_dim,
        sinks=draws.of("sinks", can.sinks, yes),
        second=second,
        counts=draws.of("counts", can.counts, yes),
        ragged=draws.of("packed keys", can.ragged, yes),
        powers=draws.of("powers of two", can.powers, yes),
        ratio=draws.option(among(_RATIOS, can.ratios)) if SparseOp.COMPRESS in ops else 4,
    )


def _step(
    draws: Draws, can: SparseCapability, ops: tuple[SparseOp, ...], geometry: SparseGeometry, long: bool
) -> SparseStep:
    modes = tuple(mode for mode in (*can.modes, *can.modes) if mode is not SparseMode.IDLE)
    idle = (SparseMode.IDLE,) if SparseMode.IDLE in can.modes else ()
    mode = draws.draw(_modes((*modes, *idle), can).under(draws.lean))
    replayed = mode.batched and can.replays and draws.flag("replayed", 2, 1)
    padding = draws.of("padding", (0, 0, 1, 2, _MOST_PADDING), yes) if can.padding else 0
    if mode is SparseMode.IDLE:
        return SparseStep(mode=mode, padding=max(padding, int(replayed)), replayed=replayed)
    queries = {SparseMode.DECODE: 1, SparseMode.VERIFY: draws.option(_DRAFTS)}.get(mode, 0)
    batch = 1 if long else draws.option((1, 1, 2, 2, 3, 5))
    room = _room(ops, geometry) // batch
    requests = tuple(_request(draws, can, mode, queries, room, geometry, long) for _ in range(batch))
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
    draws: Draws, can: SparseCapability, mode: SparseMode, queries: int, room: int, geometry: SparseGeometry, long: bool
) -> SparseRequest:
    if long:
        low, high = draws.option(_LONG)
        most = min(can.longest, room // max(queries, 1))
        keys = draws.integer(min(low, most), min(high, most))
        q_len = queries or 1
        return SparseRequest(q_len, keys) if mode is not SparseMode.PREFILL else SparseRequest(8, 8)
    size, top_k = geometry.page_size, min(geometry.top_k, 300)
    about = draws.draw(_numbers_of_keys(size, top_k).under(draws.lean))
    keys = max(1, draws.integer(max(about - 2, 1), about + 3))
    if mode is SparseMode.PREFILL:
        keys = max(1, min(keys, int(room**0.5), 48))
        return SparseRequest(keys, keys)
    if mode is SparseMode.EXTEND:
        keys = min(keys, 400, can.longest)
        return SparseRequest(max(1, min(draws.integer(1, 24), keys, room // keys)), keys)
    keys = max(keys, queries)
    return SparseRequest(queries, max(queries, min(keys, room // queries, can.longest)))
