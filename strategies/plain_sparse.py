"""Plain cases of sparse attention: two requests in one step, the first with more keys than its list has entries."""

from itertools import product
from typing import TypeVar

from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import (
    FIXED_DIMS,
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
from attnfuzz.strategies.plain_cases import spread

T = TypeVar("T")

_GROUPS = 2
_PROMPTS = 40
"""Most tokens of a prefill, each of which is a query with a list of its own."""


def plain_sparse(can: SparseCapability, backend: str) -> tuple[SparseCase, ...]:
    """Return plain cases that `can` covers, over its chains of ops, its modes, and the formats of its KV cache."""
    chains = tuple(dict.fromkeys(can.chains))
    combinations = product(chains, can.modes, can.formats)
    # The format is that of the attention alone.
    made = (_case(can, backend, *each) for each in combinations if _matters(can, each[0], each[2]))
    return spread([case for case in made if case is not None and can.why_not(case) is None])


def _matters(can: SparseCapability, ops: tuple[SparseOp, ...], kind: KvFormat) -> bool:
    return SparseOp.ATTENTION in ops or kind is can.formats[0]


def _case(
    can: SparseCapability, backend: str, ops: tuple[SparseOp, ...], mode: SparseMode, kind: KvFormat
) -> SparseCase | None:
    if mode is SparseMode.IDLE:
        return None
    geometry = _geometry(can, kind)
    return SparseCase(
        backend=backend,
        ops=ops,
        steps=(_step(can, mode, geometry),),
        geometry=geometry,
        scores=_first(Scores.NORMAL, can.scores),
        values=can.values[0],
        order=_first(ListOrder.RECENT, can.orders),
        tail=_first(Tail.MINUS_ONE, can.tails),
    )


def _first(usual: T, supported: tuple[T, ...]) -> T:
    """Return the usual value, or the first one if it is not supported."""
    return usual if usual in supported else supported[0]


def _geometry(can: SparseCapability, kind: KvFormat) -> SparseGeometry:
    defaults = SparseGeometry()
    dims = (defaults.dim, defaults.value_dim) if kind is KvFormat.HEADS else (48, 32)
    dim, value_dim = FIXED_DIMS.get(kind) or (can.dims[0] if can.dims else dims)
    heads = min(can.heads, default=defaults.query_heads)
    return SparseGeometry(
        page_size=min(can.page_sizes, default=defaults.page_size),
        index_heads=heads,
        index_dim=min(can.index_dims, default=defaults.index_dim),
        top_k=min(can.top_ks, default=defaults.top_k),
        format=kind,
        query_heads=heads,
        dim=dim,
        value_dim=value_dim,
        sinks=can.sinks[0],
        second=0 if False in can.seconds else defaults.top_k,
        counts=can.counts[0],
        ragged=can.ragged[0],
        powers=can.powers[0],
        ratio=can.ratios[0] if can.ratios else defaults.ratio,
    )


def _step(can: SparseCapability, mode: SparseMode, geometry: SparseGeometry) -> SparseStep:
    # The last token of a request ends a group, which a compressor then pools.
    short = min(_GROUPS * geometry.ratio, can.longest)
    long = min((geometry.top_k // geometry.ratio + _GROUPS) * geometry.ratio, can.longest)
    if mode is SparseMode.PREFILL:
        lengths = min(long, _PROMPTS), min(short, _PROMPTS)
        return SparseStep(mode=mode, requests=tuple(SparseRequest(each, each) for each in lengths))
    queries = 1 if mode is SparseMode.DECODE else 3
    return SparseStep(mode=mode, requests=tuple(SparseRequest(queries, each) for each in (long, short)))
