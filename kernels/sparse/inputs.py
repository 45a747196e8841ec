"""The inputs of a step of sparse attention, drawn on the host: rows, pages, numbers and lists."""

from dataclasses import dataclass
from functools import cached_property

import torch

from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.chance import Chance, TokenRun, mixed
from attnfuzz.reference.sparse import packed
from attnfuzz.reference.sparse.case import KvFormat, ListOrder, Scores, SparseCase, SparseMode, SparseStep, Tail
from attnfuzz.reference.sparse.indexer import LARGEST, Quantised, quantise
from attnfuzz.reference.values import Operand, draw_runs, draw_sinks

_STREAMS = 1 << 12
"""More than the requests of a step."""

_INDEXER, _LISTS, _WEIGHTS, _SECOND, _SCORES, _FAINT = 1 << 32, 2 << 32, 3 << 32, 4 << 32, 5 << 32, 10 << 32
"""Added to the seed, so that draws are independent."""

NAN_BYTE = 0xFF
"""A byte of NaN in each of e4m3, bfloat16 and float32."""

WILD = 0x7FFFFFFF
"""The page id of columns of a table that no length reaches."""

_LEVELS = 4

_FAINT_SHARE, _FAINT_FACTOR = 0.125, 2.0**-20
"""The share of the indexer's keys that are 0, or so small that the least magnitude limits their scales."""


@dataclass(frozen=True)
class SparseRow:
    """A query of a step: its request, -1 for padding, and the number of keys that it sees."""

    request: int
    length: int


class OpInputs:
    """The inputs of step `index` of a case.

    Requests have pages of their own, `table` has their ids [requests with padding, `columns`]. Rows of padding see no
    key. `keys_from[b]` is where the keys of request b begin among those of all.
    """

    def __init__(self, case: SparseCase, index: int) -> None:
        self.case, self.index, self.step = case, index, case.steps[index]
        self.geometry, self.columns = case.geometry, _columns(case)
        lengths = [request.kv_len for request in self.step.requests]
        self.keys_from = tuple(sum(lengths[:b]) for b in range(len(lengths)))
        self.keys = sum(lengths)

    @property
    def seed(self) -> int:
        """The seed of the case."""
        return self.case.seed

    def _runs(self, lengths: list[int]) -> list[TokenRun]:
        return [TokenRun(self.index * _STREAMS + b, length) for b, length in enumerate(lengths)]

    @cached_property
    def rows(self) -> tuple[SparseRow, ...]:
        """All rows, those of padding last."""
        real = [
            SparseRow(b, request.kv_len - request.q_len + 1 + j)
            for b, request in enumerate(self.step.requests)
            for j in range(request.q_len)
        ]
        return (*real, *[SparseRow(-1, 0)] * (self.step.rows - len(real)))

    @property
    def batch(self) -> int:
        """The number of requests of a batched step, with padding."""
        return len(self.step.requests) + (self.step.padding if self.step.mode.batched else 0)

    @cached_property
    def pages(self) -> tuple[torch.Tensor, ...]:
        """The page ids of each request, int32."""
        counts = [-(-request.kv_len // self.geometry.page_size) for request in self.step.requests]
        ids = torch.arange(pool_pages(self.case), dtype=torch.int32)[: sum(counts) + 1]
        if not self.case.backwards:
            order = torch.randperm(
                len(ids), generator=torch.Generator().manual_seed(self.seed % (1 << 31) + self.index)
            )
            ids = ids[order]
        else:
            ids = ids.flip(0)
        return tuple(ids[: sum(counts)].split(counts)) if counts else ()

    @cached_property
    def table(self) -> torch.Tensor:
        """The page table, int32 [requests with padding, columns]."""
        padding = self.step.padding if self.step.mode.batched else 0
        table = torch.full((len(self.pages) + padding, self.columns), WILD, dtype=torch.int32)
        for b, ids in enumerate(self.pages):
            table[b, : len(ids)] = ids
        return table

    def slots_of(self, request: int, positions: torch.Tensor) -> torch.Tensor:
        """Return the slots of positions of a request, int64."""
        size = self.geometry.page_size
        return self.pages[request][positions // size].long() * size + positions % size

    @cached_property
    def all_slots(self) -> torch.Tensor:
        """The slots of all keys of all requests, int64 [keys]."""
        own = [self.slots_of(b, torch.arange(each.kv_len)) for b, each in enumerate(self.step.requests)]
        return torch.cat(own) if own else torch.zeros(0, dtype=torch.int64)

    @cached_property
    def tables_of_rows(self) -> torch.Tensor:
        """The row of the page table of each query, int32 [rows, columns]; rows of padding have none of their own."""
        wild = torch.full((1, self.columns), WILD, dtype=torch.int32)
        table = torch.cat((self.table, wild))
        return table[[row.request if row.request >= 0 else len(table) - 1 for row in self.rows]]

    # The indexer

    @cached_property
    def index_keys(self) -> torch.Tensor:
        """The indexer's keys of all requests before they are quantised, bfloat16 [keys, dim]."""
        runs = self._runs([request.kv_len for request in self.step.requests])
        keys = self._products(runs, Operand.KEY, 1)[:, 0]
        if self.case.scores is Scores.NORMAL:
            kind, zero = Chance(runs, mixed(_FAINT, self.seed)).share(2).T
            keys = keys * torch.where(kind < _FAINT_SHARE, torch.where(zero < 0.5, 0.0, _FAINT_FACTOR), 1.0)[:, None]
        return keys.to(torch.bfloat16)

    @cached_property
    def index_cache_keys(self) -> Quantised:
        """These keys, quantised."""
        return quantise(self.index_keys.float(), powers=self.geometry.powers)

    @cached_property
    def index_queries(self) -> torch.Tensor:
        """The indexer's queries, e4m3 [rows, heads, dim], those of padding 0."""
        runs = self._runs([request.q_len for request in self.step.requests])
        drawn = self._products(runs, Operand.QUERY, self.geometry.index_heads)
        queries = torch.zeros(len(self.rows), *drawn.shape[1:])
        queries[: len(drawn)] = drawn.clamp(-LARGEST, LARGEST)
        return queries.to(torch.float8_e4m3fn)

    @cached_property
    def index_weights(self) -> torch.Tensor:
        """The weights of the indexer's heads, float32 [rows, heads]."""
        chance = Chance([TokenRun(self.index, len(self.rows))], mixed(_WEIGHTS, self.seed))
        if self.case.scores is Scores.NORMAL:
            return chance.normal(self.geometry.index_heads)
        return chance.sign(self.geometry.index_heads)

    def _products(self, runs: list[TokenRun], operand: Operand, heads: int) -> torch.Tensor:
        dim, seed = self.geometry.index_dim, mixed(_INDEXER, self.seed)
        if self.case.scores is Scores.NORMAL:
            return _drawn(self.case.values, operand, runs, heads, dim, seed=seed)
        signs = Chance(runs, mixed(seed, heads)).sign(heads, dim)
        if self.case.scores is Scores.EQUAL and operand is Operand.KEY:
            return torch.ones_like(signs)
        # Few products differ, so that scores tie.
        signs[..., _LEVELS:] = 0
        return signs

    # Scores that no op of the case makes

    def scores(self, row: int) -> torch.Tensor:
        """Draw the scores of a row, float32 [length]."""
        length = self.rows[row].length
        chance = Chance([TokenRun(self.index * _STREAMS + row, length)], mixed(_SCORES, self.seed))
        drawn = chance.normal(1)[:, 0]
        # One of 65,536 numbers, and a second one that is smaller by far.
        drawn += chance.share(2)[:, 1] * 2.0**-18
        kind = self.case.scores
        if kind is Scores.TIES:
            return (drawn * 2).round() / 2
        if kind is Scores.EQUAL:
            return torch.full_like(drawn, 0.25)
        if kind in (Scores.RISING, Scores.FALLING):
            return drawn.sort(descending=kind is Scores.FALLING).values
        if kind is Scores.CLOSE:
            bits = (chance.share(3)[:, 2] * (1 << 14)).int()
            return (torch.full_like(drawn, -1.5).view(torch.int32) + bits).view(torch.float32)
        some = chance.share(4)[:, 3]
        if kind is Scores.INFINITE:
            return torch.where(some < 0.5, -torch.inf, drawn)
        if kind is Scores.NAN:
            return torch.where(some < 0.1, torch.nan, drawn)
        return drawn

    # Lists that no op of the case makes

    def positions(self, row: int, length: int, keys: int, salt: int = 0) -> torch.Tensor:
        """Draw a list of positions below `keys` for a row, int32 [at most length]. HOLES are -1."""
        count = min(length, keys)
        order = self.case.order
        if order is ListOrder.RECENT or not keys:
            return torch.arange(keys - count, keys, dtype=torch.int32)
        chance = Chance([TokenRun(self.index * _STREAMS + row, max(length, keys))], mixed(_LISTS + salt, self.seed))
        share = chance.share(2)
        if order is ListOrder.REPEATED:
            return (share[:length, 0] * keys).int().clamp_max(keys - 1)
        chosen = share[:keys, 0].argsort()[:count].int()
        if order is ListOrder.HOLES:
            chosen[share[:count, 1] < 0.3] = -1
        return chosen

    # The attention

    @cached_property
    def queries(self) -> torch.Tensor:
        """The queries of the attention, bfloat16 [rows, heads, dim], those of padding 0."""
        runs = self._runs([request.q_len for request in self.step.requests])
        drawn = _drawn(self._values, Operand.QUERY, runs, self.geometry.query_heads, self.geometry.dim, seed=self.seed)
        queries = torch.zeros(len(self.rows), *drawn.shape[1:], dtype=torch.bfloat16)
        queries[: len(drawn)] = drawn.to(torch.bfloat16)
        return queries

    @property
    def _values(self) -> ValueFamily:
        return self.case.values

    def contents(self, lengths: list[int], salt: int = 0) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Draw keys of requests of these lengths, and values unless they are a part of the keys.

        Keys are bfloat16 [n, kv_heads, dim], or packed uint8 [n, 656] or [n, 584].
        """
        geometry, runs, seed = self.geometry, self._runs(lengths), mixed(salt, self.seed)
        keys = _drawn(self._values, Operand.KEY, runs, geometry.kv_heads, geometry.dim, seed=seed)
        if geometry.format is KvFormat.PACKED:
            return packed.pack(keys[:, 0]), None
        if geometry.format is KvFormat.PAGED:
            return packed.pack_paged(keys[:, 0]), None
        if geometry.format is KvFormat.LATENT:
            return keys.to(torch.bfloat16), None
        values = _drawn(self._values, Operand.VALUE, runs, geometry.kv_heads, geometry.value_dim, seed=seed)
        return keys.to(torch.bfloat16), values.to(torch.bfloat16)

    @cached_property
    def sinks(self) -> torch.Tensor | None:
        """The sinks, float32 [heads]."""
        if not self.geometry.sinks:
            return None
        return draw_sinks(self._values, self.geometry.query_heads, seed=self.seed, stream=0)

    def filled(self, entries: list[torch.Tensor], length: int, slots: int) -> torch.Tensor:
        """Return lists int32 [rows, length] of these entries, with the case's tail behind them."""
        tails = {Tail.MINUS_ONE: -1, Tail.PAST_THE_POOL: slots + 3, Tail.OTHER_SLOTS: 0}
        lists = torch.full((len(entries), length), tails[self.case.tail], dtype=torch.int32)
        if self.case.tail is Tail.OTHER_SLOTS and slots:
            lists[:] = torch.arange(length, dtype=torch.int32) % slots
        for row, own in enumerate(entries):
            lists[row, : len(own)] = own
        return lists


def _drawn(
    family: ValueFamily, operand: Operand, runs: list[TokenRun], heads: int, dim: int, *, seed: int
) -> torch.Tensor:
    """Draw an operand float32 [tokens, heads, dim], or none for an idle step."""
    if not sum(run.tokens for run in runs):
        return torch.zeros(0, heads, dim)
    return draw_runs(family, operand, runs, heads, dim, seed=seed)


def pool_pages(case: SparseCase) -> int:
    """Return the number of pages of the pool: those of the largest step, and two that no request has."""
    size = case.geometry.page_size
    return 2 + max(sum(-(-request.kv_len // size) for request in step.requests) for step in case.steps)


def _columns(case: SparseCase) -> int:
    """Return the number of columns of page tables."""
    size = case.geometry.page_size
    longest = max((request.kv_len for step in case.steps for request in step.requests), default=1)
    return -(-longest // size) + case.slack


def second_keys(length: int) -> int:
    """Return the number of keys of the second pool that a row of this length sees: one for each four tokens."""
    return length // 4


def graph_of(step: SparseStep) -> tuple[SparseMode, int, int]:
    """Return the graph that a replayed step runs in: its mode, requests with padding and queries of each."""
    mode = SparseMode.DECODE if step.mode is SparseMode.IDLE else step.mode
    return mode, len(step.requests) + step.padding, step.queries
