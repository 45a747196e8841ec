"""A backend of sparse attention running one case, step by step and op by op."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnfuzz.kernels.functions.function_backend import Keywords, unread
from attnfuzz.kernels.interface.backend import (
    Attended,
    Bench,
    Fill,
    Graph,
    Op,
    Output,
)
from attnfuzz.kernels.sparse.compress import compressed
from attnfuzz.kernels.sparse.index_cache import cache_content, new_keys, written_keys
from attnfuzz.kernels.sparse.inputs import OpInputs, graph_of, pool_pages, second_keys
from attnfuzz.kernels.sparse.pool import KeyPool
from attnfuzz.kernels.sparse.results import Part, Scored, Selected, SparselyAttended, SparseResult, written_rows
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.sparse import lists
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import SparseCase, SparseOp
from attnfuzz.reference.sparse.indexer import Scoring
from attnfuzz.reference.sparse.lists import Selection

_Tensors = dict[str, torch.Tensor]


class ChainSession:
    """Runs the ops of a case. Planted defects override a method.

    `ops` are those of the backend by their names in `attnfuzz.kernels.sparse.backend`. `noise` is the model of its
    scores, `can` its capability.
    """

    def __init__(
        self, case: SparseCase, bench: Bench, ops: Mapping[str, Op], noise: NoiseModel, can: SparseCapability
    ) -> None:
        self._case, self._bench, self._ops, self._noise, self._can = case, bench, ops, noise, can
        self._static: dict[tuple[object, str], _Tensors] = {}
        self._graphs: dict[tuple[object, str], Graph] = {}
        self._pools: _Tensors = {}
        self._returned: dict[str, str] = {}
        self.before: _Tensors = {}

    def forward(self, index: int) -> SparseResult:
        """Run the ops of one step, each on right inputs."""
        self._returned = {}
        return SparseResult(tuple(_Forward(self, OpInputs(self._case, index)).parts()), self._returned)

    def launch(self, inputs: OpInputs, name: str, given: Mapping[str, Any], outputs: Mapping[str, Any]) -> _Tensors:
        """Launch an op, or replay its graph. Returns its tensors; `before` has the earlier contents of its outputs.

        `given` has values of tensors, tensors of the pool, and scalars; `outputs` shapes and dtypes.
        """
        op = self._ops[name]
        taken = Keywords.of(op.function).select(given, given)
        wanted = Keywords.of(op.function).select(outputs, outputs)
        if not inputs.step.replayed:
            tensors = self._placed(taken, wanted)
            self.before = {each: tensors[each].clone() for each in wanted}
            returned = self._bench.launcher.launch(op, **{**taken, **tensors})
            for each in list(wanted)[:1]:
                self._returned[op.name] = unread(op.name, returned, tensors[each], each)
            return tensors
        key = (graph_of(inputs.step), name)
        if key not in self._graphs:
            self._static[key] = self._placed(taken, wanted)
            with self._bench.launcher.capture() as graph:
                self._bench.launcher.launch(op, **{**taken, **self._static[key]})
            self._graphs[key] = graph
        tensors = self._static[key]
        self.refresh(key, taken)
        for each in wanted:
            self._bench.memory.renew(tensors[each])
        self.before = {each: tensors[each].clone() for each in wanted}
        self._graphs[key].replay()
        return tensors

    def refresh(self, key: tuple[object, str], taken: Mapping[str, Any]) -> None:
        """Write the inputs of a replay to the tensors of its graph."""
        for each, value in taken.items():
            if self._is_value(value):
                self._bench.memory.overwrite(self._static[key][each], value)

    def _is_value(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and not any(value is pool for pool in self._pools.values())

    def _placed(self, taken: Mapping[str, Any], wanted: Mapping[str, Any]) -> _Tensors:
        memory = self._bench.memory
        tensors = {
            name: memory.copy(name, value, stride=self._stride(name, value.shape))
            for name, value in taken.items()
            if self._is_value(value)
        }
        for name, (shape, dtype) in wanted.items():
            tensors[name] = memory.tensor(name, shape, dtype, stride=self._stride(name, shape), fill=Fill.OUTPUT)
        return tensors

    def _stride(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return strides with a gap between rows of lists, tables and scores."""
        gapped = self._case.gap and name in _GAPPED and len(shape) > 1
        return (shape[1] + self._case.gap, 1) if gapped else None

    def pool(self, name: str, content: torch.Tensor) -> torch.Tensor:
        """Return a tensor that all steps share, with this content."""
        if name not in self._pools:
            self._pools[name] = self._bench.memory.copy(name, content)
        else:
            self._bench.memory.overwrite(self._pools[name], content)
        return self._pools[name]

    def correct(self, tensor: torch.Tensor, right: torch.Tensor) -> None:
        """Put right contents into a tensor."""
        self._bench.memory.overwrite(tensor, right)

    @property
    def case(self) -> SparseCase:
        """The case."""
        return self._case

    @property
    def noise(self) -> NoiseModel:
        """The model of scores."""
        return self._noise

    def name_of(self, kind: str) -> str:
        """Return the name of the op of a kind."""
        return self._ops[kind].name

    @property
    def can(self) -> SparseCapability:
        """The capability of the backend."""
        return self._can


_GAPPED = frozenset({"block_table", "logits", "scores", "indices", "positions", "tables", "slots", "extra_indices"})
"""Tensors whose rows may have a gap between them."""


class _Forward:
    """One step: the ops of the case, in order."""

    def __init__(self, session: ChainSession, inputs: OpInputs) -> None:
        self._session, self._in, self._case = session, inputs, session.case
        self._geometry = inputs.geometry
        self._rows = inputs.rows
        self._dense = not inputs.step.mode.batched and not session.can.by_row
        self._lengths = tuple(row.length for row in self._rows)
        # Padding has no keys, wherever it is.
        self._firsts = tuple(inputs.keys_from[row.request] if row.request >= 0 else 0 for row in self._rows)
        self._starts = self._firsts if self._dense else (0,) * len(self._rows)
        self._ops = [each for each in self._case.ops if not (each is SparseOp.TRANSFORM and self._fuses)]
        self._cache: torch.Tensor | None = None
        self._scores: torch.Tensor | None = None
        self._positions: torch.Tensor | None = None
        self._slots: torch.Tensor | None = None

    def parts(self) -> list[Part]:
        """Run all ops, and return their results."""
        run: dict[SparseOp, Callable[[], Part]] = {
            SparseOp.WRITE: self._write,
            SparseOp.LOGITS: self._logits,
            SparseOp.TOP_K: self._top_k,
            SparseOp.TRANSFORM: self._transform,
            SparseOp.ATTENTION: self._attention,
        }
        if self._ops == [SparseOp.COMPRESS]:
            return list(compressed(self._session, self._in))
        return [run[op]() for op in self._ops]

    @property
    def _fuses(self) -> bool:
        return self._session.can.fused and self._case.has(SparseOp.TOP_K, SparseOp.TRANSFORM)

    @property
    def _width(self) -> int:
        """The number of columns of scores."""
        return self._in.keys if self._dense else self._in.columns * self._geometry.page_size

    @property
    def _ragged(self) -> bool:
        return self._dense and self._geometry.ragged

    @property
    def _tokens(self) -> tuple[tuple[int, int], ...]:
        """The request of each row, and which of its queries it is; rows of padding follow the requests."""
        places, counts = [], [0] * (len(self._in.step.requests) + 1)
        for row in self._rows:
            request = row.request if row.request >= 0 else len(counts) - 1
            places.append((request, counts[request]))
            counts[request] += 1
        return tuple(places)

    def _write(self) -> Part:
        inputs = self._in
        new = new_keys(inputs)
        keys, slots = inputs.index_keys[new], inputs.all_slots[new]
        padding = len(self._rows) - len(new)
        cache = self._index_cache(without=slots)
        before = cache.clone()
        self._session.launch(
            inputs,
            "write",
            {
                "k": torch.cat((keys, torch.zeros(padding, keys.shape[1], dtype=keys.dtype))),
                "slot_mapping": torch.cat((slots, torch.full((padding,), -1))),
                "kv_cache": cache,
                "page_size": self._geometry.page_size,
                "powers": self._geometry.powers,
            },
            {},
        )
        after = self._kept(cache, SparseOp.WRITE)
        written = written_keys(inputs, before, after, self._tokens, self._name("write"))
        if after is not cache:
            self._index_cache()
        return written

    def _kept(self, tensor: torch.Tensor, op: SparseOp) -> torch.Tensor:
        """Return the result of an op. A copy, if later ops follow: they get right contents in its place."""
        return tensor if op is self._ops[-1] else tensor.clone()

    def _name(self, name: str) -> str:
        return self._session.name_of(name)

    def _index_cache(self, without: torch.Tensor | None = None) -> torch.Tensor:
        """Return the indexer's cache with the keys of the step, but for those at the slots `without`."""
        self._cache = self._session.pool("kv_cache", cache_content(self._in, without))
        return self._cache

    def _logits(self) -> Part:
        inputs, geometry = self._in, self._geometry
        keys, scales = inputs.index_cache_keys
        scoring = Scoring(
            inputs.index_queries,
            inputs.index_weights,
            keys,
            scales,
            self._firsts,
            self._starts,
            self._lengths,
            self._width,
            -torch.inf if self._session.can.cleans else None,
        )
        given: dict[str, Any] = {"q": inputs.index_queries, "weights": inputs.index_weights}
        if self._dense:
            starts = torch.tensor(self._starts, dtype=torch.int32)
            name = "logits"
            given |= {
                "kv": keys,
                "kv_scales": scales,
                "cu_seq_len_k_start": starts,
                "cu_seq_len_k_end": starts + torch.tensor(self._lengths, dtype=torch.int32),
            }
        elif self._session.can.by_row:
            name = "row_logits"
            given |= {
                "kv_cache": self._cache if self._cache is not None else self._index_cache(),
                "lengths": self._row_lengths(),
                "tables": inputs.tables_of_rows,
                "page_size": geometry.page_size,
            }
        else:
            name = "paged_logits"
            given |= {
                "kv_cache": self._cache if self._cache is not None else self._index_cache(),
                "context_lens": self._context_lens(),
                "block_table": inputs.table,
                "page_size": geometry.page_size,
                "next_n": inputs.step.queries,
            }
        tensors = self._session.launch(inputs, name, given, {"logits": ((len(self._rows), self._width), torch.float32)})
        logits = tensors["logits"]
        kept, before = self._kept(logits, SparseOp.LOGITS), self._session.before["logits"]
        part = Scored(self._name(name), kept, before, scoring, self._session.noise, self._tokens)
        self._scores = scoring.right.float()
        return part

    def _context_lens(self) -> torch.Tensor:
        real = [request.kv_len for request in self._in.step.requests]
        return torch.tensor([*real, *[0] * (self._in.batch - len(real))], dtype=torch.int32)

    def _row_lengths(self) -> torch.Tensor:
        return torch.tensor(self._lengths, dtype=torch.int32)

    def _top_k(self) -> Part:
        inputs, geometry = self._in, self._geometry
        scores = self._scores if self._scores is not None else self._drawn_scores()
        names = None
        given: dict[str, Any] = {"scores": scores, "lengths": self._row_lengths()}
        if self._dense:
            given["row_starts"] = torch.tensor(self._starts, dtype=torch.int32)
        name, place = "top_k", "indices"
        if self._fuses:
            names = tuple(self._names(row) for row in range(len(self._rows)))
            name, place = ("top_k_offsets" if self._ragged else "top_k_slots"), "slots"
            given |= self._of_transform()
        shape = (len(self._rows), geometry.top_k)
        tensors = self._session.launch(inputs, name, given, {place: (shape, torch.int32)})
        selection = Selection(scores, self._starts, self._lengths, geometry.top_k, names)
        got = tensors[place]
        kept = self._kept(got, SparseOp.TOP_K)
        part = Selected(self._name(name), place, kept, selection, self._tokens)
        right, made = selection.right.clone(), got.cpu()
        for row in range(len(self._rows)):
            if not selection.mistake(row, made[row]):
                right[row] = made[row]
        if self._fuses:
            self._slots = right
        else:
            self._positions = right
        return part

    def _drawn_scores(self) -> torch.Tensor:
        """Draw the scores of all rows, with NaN outside of them: nothing may read it."""
        scores = torch.full((len(self._rows), self._width), torch.nan)
        for row, (start, length) in enumerate(zip(self._starts, self._lengths, strict=True)):
            scores[row, start : start + length] = self._in.scores(row)
        return scores

    def _names(self, row: int) -> torch.Tensor:
        request = self._rows[row].request
        if request < 0:
            return torch.zeros(0, dtype=torch.int64)
        positions = torch.arange(self._in.step.requests[request].kv_len)
        return positions + self._firsts[row] if self._ragged else self._in.slots_of(request, positions)

    def _of_transform(self) -> dict[str, Any]:
        inputs = self._in
        if self._ragged:
            return {"offsets": torch.tensor(self._firsts, dtype=torch.int32)}
        if self._session.can.by_row:
            return {"tables": inputs.tables_of_rows, "page_size": self._geometry.page_size}
        requests = [request for request, _ in self._tokens]
        # Rows of padding have a request's row where the table has none of theirs.
        last = max(len(inputs.table) - 1, 0)
        of_rows = [index // inputs.step.queries for index in range(len(requests))] if not self._dense else requests
        return {
            "requests": torch.tensor([min(each, last) for each in of_rows], dtype=torch.int32),
            "block_table": inputs.table,
            "page_size": self._geometry.page_size,
        }

    def _transform(self) -> Part:
        inputs = self._in
        positions = self._positions
        if positions is None:
            drawn = [inputs.positions(row, self._geometry.top_k, each.length) for row, each in enumerate(self._rows)]
            positions = torch.full((len(drawn), self._geometry.top_k), -1, dtype=torch.int32)
            for row, own in enumerate(drawn):
                positions[row, : len(own)] = own
        given = {"positions": positions, **self._of_transform()}
        name, place = ("offsets" if self._ragged else "slots"), "slots"
        tensors = self._session.launch(inputs, name, given, {place: (tuple(positions.shape), torch.int32)})
        if self._ragged:
            right = lists.to_offsets(positions, torch.tensor(self._firsts))
        else:
            tables = tuple(self._table_of(row) for row in range(len(self._rows)))
            right = lists.to_slots(positions, tables, self._geometry.page_size)
        got = tensors[place]
        self._slots = right
        kept, before = self._kept(got, SparseOp.TRANSFORM), self._session.before[place]
        return written_rows(self._name(name), "slots", before, kept, right, right, self._tokens)

    def _table_of(self, row: int) -> torch.Tensor:
        request = self._rows[row].request
        return self._in.pages[request] if request >= 0 else torch.zeros(1, dtype=torch.int32)

    def _attention(self) -> Part:
        inputs, geometry = self._in, self._geometry
        count = inputs.keys if self._ragged else pool_pages(self._case) * geometry.page_size
        entries = self._entries()
        pools = [KeyPool(self._session, inputs, "", count, None if self._ragged else inputs.all_slots)]
        listed = [(entries, geometry.top_k)]
        if geometry.second:
            pools.append(KeyPool(self._session, inputs, "extra_", 0, None))
            own = [
                inputs.positions(row, geometry.second, second_keys(each.length), 1) + pools[1].firsts[each.request]
                if each.request >= 0
                else torch.zeros(0, dtype=torch.int32)
                for row, each in enumerate(self._rows)
            ]
            listed.append((own, geometry.second))
        scale = geometry.dim**-0.5
        given: dict[str, Any] = {
            "query": inputs.queries,
            "softmax_scale": scale,
            "attn_sink": inputs.sinks,
            "values": None,
            "topk_length": None,
            "extra_keys": None,
            "extra_values": None,
            "extra_indices": None,
            "extra_topk_length": None,
            "tables": inputs.tables_of_rows,
            "lengths": self._row_lengths(),
        }
        filled = []
        for pool, (own, length) in zip(pools, listed, strict=True):
            prefix = pool.prefix
            filled.append(inputs.filled(own, length, pool.slots))
            given |= pool.tensors()
            given[f"{prefix}indices"] = filled[-1].long() if self._session.can.wide else filled[-1]
            given[f"{prefix}page_size"] = geometry.page_size
            if geometry.counts:
                given[f"{prefix}topk_length"] = torch.tensor([len(each) for each in own], dtype=torch.int32)
        rows, heads = len(self._rows), geometry.query_heads
        outputs = {
            "out": ((rows, heads, geometry.value_dim), torch.bfloat16),
            "lse": ((rows, heads), torch.float32),
        }
        tensors = self._session.launch(inputs, "attention", given, outputs)
        attended = []
        for row, each in enumerate(self._rows):
            if each.request < 0:
                continue
            chosen = []
            for pool, whole, (own, _) in zip(pools, filled, listed, strict=True):
                listed_keys = lists.attended(whole[row], pool.slots, len(own[row]) if geometry.counts else None)
                chosen.append(pool.chosen(listed_keys))
            key, value = (torch.cat([part[i] for part in chosen]) for i in (0, 1))
            attended.append(Attended(row, inputs.queries[row : row + 1], key, value))
        output = Output(tensors["out"], tensors.get("lse"), tuple(attended), scale, 1.0, sinks=tensors.get("attn_sink"))
        return SparselyAttended(self._name("attention"), output)

    def _entries(self) -> list[torch.Tensor]:
        """Return the list of each row, without the entries behind its count."""
        if self._slots is not None:
            counts = [min(self._geometry.top_k, length) for length in self._lengths]
            return [own[:count] for own, count in zip(self._slots, counts, strict=True)]
        made = []
        for row, each in enumerate(self._rows):
            positions = self._in.positions(row, self._geometry.top_k, each.length)
            if each.request < 0 or not len(positions):
                made.append(positions[:0])
                continue
            real = positions >= 0
            entries = positions.clone()
            names = self._names(row)
            entries[real] = names[positions[real].long()].int()
            made.append(entries)
        return made
