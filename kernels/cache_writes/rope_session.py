"""A writer that rotates new keys, and their queries, before it stores them; or one that rotates and stores nothing."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from attnfuzz.kernels.cache_writes.new_tokens import Metadata, WriteMetadata
from attnfuzz.kernels.cache_writes.rotation import cos_sin_table
from attnfuzz.kernels.cache_writes.stored import Scale
from attnfuzz.kernels.cache_writes.writer_session import (
    Bounds,
    Contents,
    Writer,
    WriterSession,
    watched_rows,
    written_rows,
)
from attnfuzz.kernels.interface.backend import Bench, Fill, WrittenTensor
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.queries import draw_queries
from attnfuzz.reference.case import Case, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.rope import Pairing

_ROWS: Final = ("query", "key")
"""The rows that are rotated."""


class RopeMetadata(WriteMetadata):
    """The metadata of a write that rotates: that of any write, and positions for the rotation."""

    def _of_tokens(self, step: Step, rows: int) -> Metadata:
        metadata = super()._of_tokens(step, rows)
        assert self._case.rope is not None
        positions = metadata["positions"].long()
        # Padded tokens are at position 0.
        positions[: step.tokens] += self._case.rope.shift
        return metadata | {"rope_positions": positions}


class RopeSession(WriterSession):
    """A server's fused rotation and write.

    The kernel rotates `query` in place, or into `query_out`, or not at all; and the same for `key`, beside the rotated
    keys that it stores.
    """

    planner_type = RopeMetadata

    def __init__(self, writer: Writer, case: Case, bench: Bench, kv: PagedKv | None = None) -> None:
        assert case.rope is not None
        self._rope, self._dim = case.rope, case.rope.dim(case.geometry)
        latent = case.geometry.latent
        first = latent.rank if latent else 0
        self._part = slice(first, first + self._dim)
        super().__init__(writer, case, bench, kv)
        self._rows: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        longest = max(case.slot_lengths().values())
        self._table = (
            bench.memory.copy("cos_sin_cache", self._cos_sin(longest + self._rope.shift))
            if not writer.rotation.computed
            else None
        )

    def _cos_sin(self, rows: int) -> torch.Tensor:
        """Compute the table that a server has for positions below `rows`."""
        return cos_sin_table(self._rope, rows, self._dim)

    def _described(self) -> dict[str, Any]:
        rotation = {
            "rotary_dim": self._dim,
            "rope_theta": self._rope.theta,
            "is_neox": self._rope.pairing is Pairing.HALVES,
        }
        table = {} if self._table is None else {"cos_sin_cache": self._table}
        return {**super()._described(), **rotation, **table}

    def _new(self, step: Step) -> dict[str, torch.Tensor]:
        index, head_dim = self._case.steps.index(step), self._case.geometry.head_dim_qk
        return {**super()._new(step), "query": draw_queries(self._case, index, step.padded_tokens, head_dim)}

    def _place_tokens(self, step: Step) -> dict[str, torch.Tensor]:
        return {**super()._place_tokens(step), **self._outputs(step)}

    def _outputs(self, step: Step) -> dict[str, torch.Tensor]:
        """Allocate a tensor for each row that the kernel computes, by the names of arguments."""
        new, dtype = self._new(step), self._out_dtype.torch_dtype
        return {
            name: self._bench.memory.tensor(name, new[row].shape, dtype, fill=Fill.OUTPUT)
            for row in _ROWS
            if self._writer.takes(name := f"{row}_out")
        }

    @property
    def _out_dtype(self) -> DType:
        """The dtype of results in tensors of their own: that of the cache."""
        return self._case.geometry.kv_dtype

    def _refresh(self, static: Mapping[str, torch.Tensor], fresh: Mapping[str, torch.Tensor]) -> None:
        super()._refresh(static, fresh)
        for name in static.keys() - fresh.keys():
            self._bench.memory.renew(static[name])

    def _result(self, row: str) -> str | None:
        """Return the argument that gets the rotated rows of an argument: another, or itself, or None."""
        names = (f"{row}_out", row)
        return next((name for name in names if name in self._writer.op.writes and self._writer.takes(name)), None)

    def _watch(self, tensors: Contents) -> None:
        """Keep the rows that the kernel computes, and their bits before."""
        self._rows = watched_rows(tensors, filter(None, map(self._result, _ROWS)))

    def _due(self, step: Step, before: Contents) -> Iterator[WrittenTensor]:
        yield from self._due_in_pool(step, before)
        new = self._new(step)
        for row in _ROWS:
            if (name := self._result(row)) is not None:
                own = name != row
                dtype = self._out_dtype if own else self._case.geometry.dtype
                scale = self._case.scales.k if own and row == "key" else 1.0
                yield written_rows(name, *self._rows[name], self._rotated(step, new[row][: step.tokens], scale, dtype))

    def _due_in_pool(self, step: Step, before: Contents) -> Iterator[WrittenTensor]:
        return super()._due(step, before)

    def _stored(self, step: Step, name: str, values: torch.Tensor, scale: Scale) -> Bounds:
        if name == "v_cache":
            return super()._stored(step, name, values, scale)
        return self._rotated(step, values, scale, self._case.geometry.kv_dtype)

    def _rotated(self, step: Step, values: torch.Tensor, scale: Scale, dtype: DType) -> Bounds:
        """Bound the numbers that the rotated rows of new tokens may become in `dtype`."""
        shift = self._rope.shift
        positions = torch.tensor([place.position + shift for place in self._tokens.places(step)], dtype=torch.int64)
        interval = self._writer.rotation.interval(values, positions, self._rope, self._part, self._dim)
        return self._writer.conversion.between(*interval, scale, dtype)


class RotationSession(RopeSession):
    """A rotation alone. No token belongs into the pool."""

    stores = False

    def _due_in_pool(self, step: Step, before: Contents) -> Iterator[WrittenTensor]:
        del step
        return self._unchanged(before)
