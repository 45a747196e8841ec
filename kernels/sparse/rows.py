"""The rows of a step, as the ops of sparse attention see them: their keys, their tokens and the names of their keys."""

from typing import Any

import torch

from attnfuzz.kernels.sparse.inputs import OpInputs


class StepRows:
    """The rows of a step, those of padding last.

    `lengths` are their numbers of keys, `firsts` the first key of each row's request among those of the step, `starts`
    the column of its scores where they begin: rows are `dense` if scores have a column for each key of the step.
    """

    def __init__(self, inputs: OpInputs, *, by_row: bool) -> None:
        self._in, self._by_row = inputs, by_row
        self._geometry = inputs.geometry
        self.all = inputs.rows
        self.dense = not inputs.step.mode.batched and not by_row
        self.lengths = tuple(row.length for row in self.all)
        # Padding has no keys, wherever it is.
        self.firsts = tuple(inputs.keys_from[row.request] if row.request >= 0 else 0 for row in self.all)
        self.starts = self.firsts if self.dense else (0,) * len(self.all)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.all)

    @property
    def width(self) -> int:
        """The number of columns of scores."""
        return self._in.keys if self.dense else self._in.columns * self._geometry.page_size

    @property
    def ragged(self) -> bool:
        """Whether lists have offsets among the keys of the step, instead of slots of the pool."""
        return self.dense and self._geometry.ragged

    @property
    def tokens(self) -> tuple[tuple[int, int], ...]:
        """The request of each row, and which of its queries it is; rows of padding follow the requests."""
        places, counts = [], [0] * (len(self._in.step.requests) + 1)
        for row in self.all:
            request = row.request if row.request >= 0 else len(counts) - 1
            places.append((request, counts[request]))
            counts[request] += 1
        return tuple(places)

    def lengths_tensor(self) -> torch.Tensor:
        """Return the number of keys of each row, int32."""
        return torch.tensor(self.lengths, dtype=torch.int32)

    def context_lens(self) -> torch.Tensor:
        """Return the number of keys of each request, int32 [batch], 0 for padding."""
        real = [request.kv_len for request in self._in.step.requests]
        return torch.tensor([*real, *[0] * (self._in.batch - len(real))], dtype=torch.int32)

    def drawn_scores(self) -> torch.Tensor:
        """Draw the scores of all rows, with NaN outside of them: nothing may read it."""
        scores = torch.full((len(self.all), self.width), torch.nan)
        for row, (start, length) in enumerate(zip(self.starts, self.lengths, strict=True)):
            scores[row, start : start + length] = self._in.scores(row)
        return scores

    def names(self, row: int) -> torch.Tensor:
        """Return the names of a row's keys in lists: offsets or slots."""
        request = self.all[row].request
        if request < 0:
            return torch.zeros(0, dtype=torch.int64)
        positions = torch.arange(self._in.step.requests[request].kv_len)
        return positions + self.firsts[row] if self.ragged else self._in.slots_of(request, positions)

    def of_transform(self) -> dict[str, Any]:
        """Return the arguments by which an op turns positions into these names."""
        inputs = self._in
        if self.ragged:
            return {"offsets": torch.tensor(self.firsts, dtype=torch.int32)}
        if self._by_row:
            return {"tables": inputs.tables_of_rows, "page_size": self._geometry.page_size}
        requests = [request for request, _ in self.tokens]
        # Rows of padding have a request's row where the table has none of theirs.
        last = max(len(inputs.table) - 1, 0)
        of_rows = [index // inputs.step.queries for index in range(len(requests))] if not self.dense else requests
        return {
            "requests": torch.tensor([min(each, last) for each in of_rows], dtype=torch.int32),
            "block_table": inputs.table,
            "page_size": self._geometry.page_size,
        }

    def table_of(self, row: int) -> torch.Tensor:
        """Return the pages of a row's request."""
        request = self.all[row].request
        return self._in.pages[request] if request >= 0 else torch.zeros(1, dtype=torch.int32)

    def drawn_positions(self) -> torch.Tensor:
        """Draw a list for each row, with -1 behind its entries."""
        top_k = self._geometry.top_k
        positions = torch.full((len(self), top_k), -1, dtype=torch.int32)
        for row, each in enumerate(self.all):
            own = self._in.positions(row, top_k, each.length)
            positions[row, : len(own)] = own
        return positions
