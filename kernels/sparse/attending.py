"""The attention of a step over lists of keys: its pools, its lists and its arguments."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from attnfuzz.kernels.interface.backend import Attended, Output
from attnfuzz.kernels.sparse.inputs import OpInputs, pool_pages, second_keys
from attnfuzz.kernels.sparse.pool import KeyPool
from attnfuzz.kernels.sparse.results import SparselyAttended
from attnfuzz.kernels.sparse.rows import StepRows
from attnfuzz.reference.sparse import lists

if TYPE_CHECKING:
    from attnfuzz.kernels.sparse.session import ChainSession


@dataclass(frozen=True)
class _Listed:
    """A pool, and for each row the entries of its list; `filled` [rows, n] has them in the form that the op gets."""

    pool: KeyPool
    entries: list[torch.Tensor]
    filled: torch.Tensor

    def keys(self, row: int, *, counted: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of a row's list."""
        count = len(self.entries[row]) if counted else None
        return self.pool.chosen(lists.attended(self.filled[row], self.pool.slots, count))


def attend(session: "ChainSession", inputs: OpInputs, rows: StepRows, slots: torch.Tensor | None) -> SparselyAttended:
    """Attend to the keys in `slots`, the lists of an earlier op, or to drawn ones."""
    geometry = inputs.geometry
    listed = list(_listed(session, inputs, rows, slots))
    heads, scale = geometry.query_heads, geometry.dim**-0.5
    given = {"query": inputs.queries, "softmax_scale": scale, "attn_sink": inputs.sinks}
    outputs = {
        "out": ((len(rows), heads, geometry.value_dim), torch.bfloat16),
        "lse": ((len(rows), heads), torch.float32),
    }
    tensors = session.launch(inputs, "attention", {**given, **_of_keys(session, inputs, rows, listed)}, outputs)
    attended = []
    for row, each in enumerate(rows.all):
        if each.request >= 0:
            chosen = [of_pool.keys(row, counted=geometry.counts) for of_pool in listed]
            key, value = (torch.cat([part[i] for part in chosen]) for i in (0, 1))
            attended.append(Attended(row, inputs.queries[row : row + 1], key, value))
    output = Output(tensors["out"], tensors.get("lse"), tuple(attended), scale, 1.0, sinks=tensors.get("attn_sink"))
    return SparselyAttended(session.name_of("attention"), output)


def _listed(session: "ChainSession", inputs: OpInputs, rows: StepRows, slots: torch.Tensor | None) -> Iterator[_Listed]:
    """Yield the pool of the step's keys, and the second one if there is one, with the lists of all rows."""
    geometry = inputs.geometry
    count = inputs.keys if rows.ragged else pool_pages(inputs.case) * geometry.page_size
    pool = KeyPool(session, inputs, "", count, None if rows.ragged else inputs.all_slots)
    entries = _entries(inputs, rows, slots)
    yield _Listed(pool, entries, inputs.filled(entries, geometry.top_k, pool.slots))
    if geometry.second:
        pool = KeyPool(session, inputs, "extra_", 0, None)
        entries = [
            inputs.positions(row, geometry.second, second_keys(each.length), 1) + pool.firsts[each.request]
            if each.request >= 0
            else torch.zeros(0, dtype=torch.int32)
            for row, each in enumerate(rows.all)
        ]
        yield _Listed(pool, entries, inputs.filled(entries, geometry.second, pool.slots))


def _of_keys(session: "ChainSession", inputs: OpInputs, rows: StepRows, listed: list[_Listed]) -> dict[str, Any]:
    """Return the arguments about keys: pools, lists, and tables for ops that take them instead."""
    given: dict[str, Any] = {
        "values": None,
        "topk_length": None,
        "extra_keys": None,
        "extra_values": None,
        "extra_indices": None,
        "extra_topk_length": None,
        "tables": inputs.tables_of_rows,
        "lengths": rows.lengths_tensor(),
    }
    for each in listed:
        prefix = each.pool.prefix
        given |= each.pool.tensors()
        given[f"{prefix}indices"] = each.filled.long() if session.can.wide else each.filled
        given[f"{prefix}page_size"] = inputs.geometry.page_size
        if inputs.geometry.counts:
            given[f"{prefix}topk_length"] = torch.tensor([len(own) for own in each.entries], dtype=torch.int32)
    return given


def _entries(inputs: OpInputs, rows: StepRows, slots: torch.Tensor | None) -> list[torch.Tensor]:
    """Return the list of each row, without the entries behind its count."""
    if slots is not None:
        counts = [min(inputs.geometry.top_k, length) for length in rows.lengths]
        return [own[:count] for own, count in zip(slots, counts, strict=True)]
    made = []
    for row, each in enumerate(rows.all):
        positions = inputs.positions(row, inputs.geometry.top_k, each.length)
        if each.request < 0 or not len(positions):
            made.append(positions[:0])
            continue
        real = positions >= 0
        entries = positions.clone()
        names = rows.names(row)
        entries[real] = names[positions[real].long()].int()
        made.append(entries)
    return made
