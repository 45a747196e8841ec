"""Which cases of sparse attention a backend supports."""

from collections.abc import Iterator
from typing import Any

import msgspec

from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.checked_fields import check_fields
from attnfuzz.reference.device import Device
from attnfuzz.reference.sparse.case import (
    CHAIN,
    KvFormat,
    ListOrder,
    Scores,
    SparseCase,
    SparseMode,
    SparseOp,
    Tail,
)

VALUES = (
    ValueFamily.NORMAL,
    ValueFamily.PEAKED,
    ValueFamily.CONSTANT,
    ValueFamily.ONE_HOT,
    ValueFamily.LARGE_LOGITS,
    ValueFamily.ZEROS,
    ValueFamily.DISCRETE,
)


class SparseCapability(msgspec.Struct, frozen=True, kw_only=True):
    """The cases that a backend supports. The defaults are those of kernels without limits.

    `chains` are the ops that it runs in one case. `fused` kernels make slots, where a chain has both TOP_K and
    TRANSFORM. `page_sizes`, `heads` (of queries, in the indexer or the attention), `index_dims`, `ratios` (of a
    compressor), `top_ks`, `kv_heads` and `dims` (pairs of dims of keys and of values) are the only ones, if given.
    `longest` bounds the keys of a request.
    Without `gaps`, rows follow each other. `by_row` kernels get pages and a length for each query in all modes. One
    that `cleans` writes -inf to columns that a row does not see. The slots of `wide` ones are int64. `patience`
    multiplies the time after which a case counts as hanging.
    """

    device: Device = Device.CPU
    patience: float = 1.0
    chains: tuple[tuple[SparseOp, ...], ...] = (CHAIN,)
    modes: tuple[SparseMode, ...] = tuple(SparseMode)
    replays: bool = True
    padding: bool = True
    fused: bool = False
    by_row: bool = False
    cleans: bool = True
    wide: bool = False
    gaps: bool = True
    formats: tuple[KvFormat, ...] = (KvFormat.HEADS, KvFormat.LATENT, KvFormat.PACKED)
    page_sizes: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    index_dims: tuple[int, ...] = ()
    top_ks: tuple[int, ...] = ()
    kv_heads: tuple[int, ...] = ()
    dims: tuple[tuple[int, int], ...] = ()
    sinks: tuple[bool, ...] = (False, True)
    seconds: tuple[bool, ...] = (False, True)
    counts: tuple[bool, ...] = (False, True)
    ragged: tuple[bool, ...] = (False, True)
    powers: tuple[bool, ...] = (False, True)
    ratios: tuple[int, ...] = ()
    scores: tuple[Scores, ...] = tuple(Scores)
    orders: tuple[ListOrder, ...] = tuple(ListOrder)
    tails: tuple[Tail, ...] = tuple(Tail)
    values: tuple[ValueFamily, ...] = (*VALUES, ValueFamily.UNEVEN)
    longest: int = 1 << 17

    def __post_init__(self) -> None:
        """Convert and check the fields. Raises TypeError."""
        check_fields(self)

    def why_not(self, case: AnyCase) -> str | None:
        """Return the first feature of a case that is not supported, as a noun phrase, or None."""
        return next(self._refusals(case), None) if isinstance(case, SparseCase) else "cases of other ops"

    def _refusals(self, case: SparseCase) -> Iterator[str]:
        if case.ops not in self.chains:
            yield f"the ops {', '.join(case.ops)}"
        for step in case.steps:
            if step.mode not in self.modes:
                yield f"{step.mode} steps"
            if step.replayed and not self.replays:
                yield "replayed steps"
            if step.padding and not self.padding:
                yield "padding"
            if any(request.kv_len > self.longest for request in step.requests):
                yield f"more than {self.longest} keys"
        if case.gap and not self.gaps:
            yield "gaps between rows"
        for words, used, value, options in _limited(self, case):
            if used and options and value not in options:
                yield words.format(value)
        for words, used, value, options in _chosen(self, case):
            if used and value not in options:
                yield words.format(value)


_Choice = tuple[str, bool, Any, tuple[Any, ...]]
"""A noun phrase, whether a case shows it, its value, and the supported ones."""


def _limited(can: SparseCapability, case: SparseCase) -> Iterator[_Choice]:
    """Yield the numbers of a case, for which no options mean any number."""
    geometry, attends = case.geometry, case.has(SparseOp.ATTENTION)
    yield "pages of {}", _uses_pages(case), geometry.page_size, can.page_sizes
    yield "{} heads of the indexer", case.has(SparseOp.LOGITS), geometry.index_heads, can.heads
    yield "indexer keys of {}", _has_keys(case), geometry.index_dim, can.index_dims
    yield "groups of {} tokens", case.has(SparseOp.COMPRESS), geometry.ratio, can.ratios
    lists = case.has(SparseOp.TOP_K) or case.has(SparseOp.TRANSFORM)
    yield "lists of {}", lists, geometry.top_k, can.top_ks
    yield "{} query heads", attends, geometry.query_heads, can.heads
    yield "{} KV heads", attends, geometry.kv_heads, can.kv_heads
    yield "head dims {}", attends, (geometry.dim, geometry.value_dim), can.dims


def _chosen(can: SparseCapability, case: SparseCase) -> Iterator[_Choice]:
    """Yield the choices of a case."""
    geometry, attends = case.geometry, case.has(SparseOp.ATTENTION)
    yield "a KV cache of {}", attends, geometry.format, can.formats
    yield "sinks={}", attends, geometry.sinks, can.sinks
    yield "second lists={}", attends, geometry.second > 0, can.seconds
    yield "counts={}", attends, geometry.counts, can.counts
    yield "packed keys={}", _uses_pages(case), geometry.ragged, can.ragged
    yield "powers of two={}", _has_keys(case), geometry.powers, can.powers
    yield "{} scores", True, case.scores, can.scores
    yield "{} lists", True, case.order, can.orders
    yield "lists with {} behind", True, case.tail, can.tails
    yield "{} values", True, case.values, can.values


def _uses_pages(case: SparseCase) -> bool:
    return _has_keys(case) or case.has(SparseOp.TRANSFORM)


def _has_keys(case: SparseCase) -> bool:
    return any(map(case.has, (SparseOp.COMPRESS, SparseOp.WRITE, SparseOp.LOGITS)))
