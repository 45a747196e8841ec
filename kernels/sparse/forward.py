"""One step of sparse attention: the ops of a case in their order, each on right inputs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from attnfuzz.kernels.sparse.attending import attend
from attnfuzz.kernels.sparse.compress import compressed
from attnfuzz.kernels.sparse.index_cache import cache_content, new_keys, written_keys
from attnfuzz.kernels.sparse.inputs import OpInputs
from attnfuzz.kernels.sparse.results import Part, Scored, Selected, written_rows
from attnfuzz.kernels.sparse.rows import StepRows
from attnfuzz.reference.sparse import lists
from attnfuzz.reference.sparse.case import SparseOp
from attnfuzz.reference.sparse.indexer import Scoring
from attnfuzz.reference.sparse.lists import Selection

if TYPE_CHECKING:
    from attnfuzz.kernels.sparse.session import ChainSession


class Forward:
    """One step: the ops of the case, in order."""

    def __init__(self, session: "ChainSession", inputs: OpInputs) -> None:
        self._session, self._in, self._case = session, inputs, session.case
        self._geometry = inputs.geometry
        self._rows = StepRows(inputs, by_row=session.can.by_row)
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
            SparseOp.ATTENTION: lambda: attend(self._session, self._in, self._rows, self._slots),
        }
        if self._ops == [SparseOp.COMPRESS]:
            return list(compressed(self._session, self._in))
        return [run[op]() for op in self._ops]

    @property
    def _fuses(self) -> bool:
        return self._session.can.fused and self._case.has(SparseOp.TOP_K, SparseOp.TRANSFORM)

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
        written = written_keys(inputs, before, after, self._rows.tokens, self._name("write"))
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
            self._rows.firsts,
            self._rows.starts,
            self._rows.lengths,
            self._rows.width,
            -torch.inf if self._session.can.cleans else None,
        )
        given: dict[str, Any] = {"q": inputs.index_queries, "weights": inputs.index_weights}
        if self._rows.dense:
            starts = torch.tensor(self._rows.starts, dtype=torch.int32)
            name = "logits"
            given |= {
                "kv": keys,
                "kv_scales": scales,
                "cu_seq_len_k_start": starts,
                "cu_seq_len_k_end": starts + torch.tensor(self._rows.lengths, dtype=torch.int32),
            }
        elif self._session.can.by_row:
            name = "row_logits"
            given |= {
                "kv_cache": self._cache if self._cache is not None else self._index_cache(),
                "lengths": self._rows.lengths_tensor(),
                "tables": inputs.tables_of_rows,
                "page_size": geometry.page_size,
            }
        else:
            name = "paged_logits"
            given |= {
                "kv_cache": self._cache if self._cache is not None else self._index_cache(),
                "context_lens": self._rows.context_lens(),
                "block_table": inputs.table,
                "page_size": geometry.page_size,
                "next_n": inputs.step.queries,
            }
        tensors = self._session.launch(
            inputs, name, given, {"logits": ((len(self._rows), self._rows.width), torch.float32)}
        )
        logits = tensors["logits"]
        kept, before = self._kept(logits, SparseOp.LOGITS), self._session.before["logits"]
        part = Scored(self._name(name), kept, before, scoring, self._session.noise, self._rows.tokens)
        self._scores = scoring.right.float()
        return part

    def _top_k(self) -> Part:
        inputs, geometry = self._in, self._geometry
        scores = self._scores if self._scores is not None else self._rows.drawn_scores()
        names = None
        given: dict[str, Any] = {"scores": scores, "lengths": self._rows.lengths_tensor()}
        if self._rows.dense:
            given["row_starts"] = torch.tensor(self._rows.starts, dtype=torch.int32)
        name, place = "top_k", "indices"
        if self._fuses:
            names = tuple(self._rows.names(row) for row in range(len(self._rows)))
            name, place = ("top_k_offsets" if self._rows.ragged else "top_k_slots"), "slots"
            given |= self._rows.of_transform()
        shape = (len(self._rows), geometry.top_k)
        tensors = self._session.launch(inputs, name, given, {place: (shape, torch.int32)})
        selection = Selection(scores, self._rows.starts, self._rows.lengths, geometry.top_k, names)
        got = tensors[place]
        kept = self._kept(got, SparseOp.TOP_K)
        part = Selected(self._name(name), place, kept, selection, self._rows.tokens)
        right, made = selection.right.clone(), got.cpu()
        for row in range(len(self._rows)):
            if not selection.mistake(row, made[row]):
                right[row] = made[row]
        if self._fuses:
            self._slots = right
        else:
            self._positions = right
        return part

    def _transform(self) -> Part:
        inputs = self._in
        positions = self._positions if self._positions is not None else self._rows.drawn_positions()
        given = {"positions": positions, **self._rows.of_transform()}
        name, place = ("offsets" if self._rows.ragged else "slots"), "slots"
        tensors = self._session.launch(inputs, name, given, {place: (tuple(positions.shape), torch.int32)})
        if self._rows.ragged:
            right = lists.to_offsets(positions, torch.tensor(self._rows.firsts))
        else:
            tables = tuple(self._rows.table_of(row) for row in range(len(self._rows)))
            right = lists.to_slots(positions, tables, self._geometry.page_size)
        got = tensors[place]
        self._slots = right
        kept, before = self._kept(got, SparseOp.TRANSFORM), self._session.before[place]
        return written_rows(self._name(name), "slots", before, kept, right, right, self._rows.tokens)
