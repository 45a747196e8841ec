"""Metadata of a batch: a planner's lengths and pages for a kernel.

Rows of the page table extend beyond the pages of their requests.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.lengths import int32, longest, place_int32, running_sum
from attnfuzz.kernels.planning.page_ids import DUMMY_PAGE
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.reference.case import Case, Mode, Step, TableTail, Tombstone
from attnfuzz.reference.shared_pools import pages_left


class PageTable:
    """Builds page-table rows like a server's req_to_token: owned pages first, then the case's tail.

    A kernel may read pages that the request does not own, for queries padded past its end. So up to `reach` pages, a
    row has the dummy page, whatever the tail.
    """

    def __init__(self, case: Case, kv: PagedKv) -> None:
        self._tail = case.pages.tail
        self._slack = case.pages.table_slack
        self._gap = case.views.table_gap
        self._kv = kv
        self._case = case
        self._owned = sorted({page for pages in kv.pages.values() for page in pages if page != DUMMY_PAGE}) or [
            DUMMY_PAGE
        ]
        self._random = random.Random(case.seed)

    def pages_for(self, length: int) -> int:
        """Return the number of pages that hold `length` tokens."""
        return -(-length // self._kv.page_size)

    def width(self, length: int, multiple: int = 1) -> int:
        """Return the columns for requests of up to `length` tokens, with the case's slack, rounded up to a multiple."""
        columns = max(1, self.pages_for(length)) + self._slack
        return -(-columns // multiple) * multiple

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """Build an int32 table [len(slots), width]: `owned[b]` pages of row b, dummy pages up to `reach[b]`, the tail.

        A row of slot None is a padded row: dummy pages throughout.
        """
        table = []
        for slot, own, last in zip(slots, owned, reach, strict=True):
            if slot is None:
                table.append([DUMMY_PAGE] * width)
                continue
            row = self._pages(slot)[:own]
            row = row + [DUMMY_PAGE] * (min(last, width) - len(row))
            table.append(row + self._beyond(width - len(row)))
        return int32(table).reshape(len(table), width)

    def _pages(self, slot: int) -> list[int]:
        """Return the pages of a sequence."""
        return self._kv.pages[slot]

    def left(self, row: "Row") -> int:
        """Return the number of a row's first pages that have left its window."""
        return pages_left(self._case, row.q_len, row.kv_len)

    def bury(self, table: torch.Tensor, rows: "Sequence[Row]") -> torch.Tensor:
        """Write tombstones for the pages of each row that have left its window. Stale ids are there already."""
        entry = {Tombstone.NULL: DUMMY_PAGE, Tombstone.MINUS_ONE: -1}.get(self._case.pages.tombstone)
        if entry is not None:
            for b, row in enumerate(rows):
                if row.slot is not None:
                    table[b, : self.left(row)] = entry
        return table

    def place(self, bench: Bench, table: torch.Tensor) -> torch.Tensor:
        """Return the table in guarded memory, with the case's gap between its rows."""
        width = table.shape[1]
        return bench.memory.copy("block_tables", table, stride=(width + self._gap, 1))

    def _beyond(self, count: int) -> list[int]:
        match self._tail:
            case TableTail.ZEROS:
                return [DUMMY_PAGE] * count
            case TableTail.MINUS_ONE:
                return [-1] * count
            case TableTail.POISON:
                return [self._kv.poison_page] * count
            case TableTail.STALE:
                return self._random.choices(self._owned, k=count)


@dataclass(frozen=True)
class Row:
    """One row of a batch: a request's, or (slot None) a padded one.

    `kv_len` is the length passed to the kernel, `owned` the tokens whose pages the request owns. They differ if queries
    are padded past the end of a request.
    """

    slot: int | None
    q_len: int
    kv_len: int
    owned: int

    @classmethod
    def real(cls, step: Step) -> "list[Row]":
        """Return the rows of a step's requests."""
        return [cls(request.slot, request.q_len, request.kv_len, request.kv_len) for request in step.requests]

    @classmethod
    def padding(cls, step: Step, rows: int) -> "list[Row]":
        """Return padded rows as in SGLang: sequence length 1, to which a verify adds its draft tokens."""
        kv_len = 1 + step.tokens_per_request if step.mode is Mode.TARGET_VERIFY else 1
        return [cls(None, step.tokens_per_request, kv_len, 0)] * rows

    @classmethod
    def padded(cls, step: Step) -> "list[Row]":
        """Return the rows of a step that is planned after padding."""
        real = cls.real(step)
        return real + cls.padding(step, step.padded_batch - len(real))


def pad_queries(rows: Sequence[Row], stride: int) -> list[Row]:
    """Pad the queries of rows to `stride`, past the request's end. The last query stays with the last key."""
    return [replace(row, q_len=stride, kv_len=row.kv_len - row.q_len + stride) for row in rows]


@dataclass(frozen=True)
class BatchMetadata:
    """Metadata tensors of `batch` rows, all int32: lengths [batch], cumulative ones [batch + 1], pages [batch, width].

    `max_q_len` and `max_kv_len` are the stated maxima.
    """

    seq_lens: torch.Tensor
    cum_seq_lens_q: torch.Tensor
    cum_seq_lens_kv: torch.Tensor
    block_tables: torch.Tensor
    max_q_len: int
    max_kv_len: int

    @property
    def batch(self) -> int:
        """The number of rows."""
        return self.cum_seq_lens_q.shape[0] - 1


def plan_rows(case: Case, bench: Bench, table: PageTable, rows: Sequence[Row]) -> BatchMetadata:
    """Plan a batch eagerly, in tensors of exactly its size."""
    kv_lens = [row.kv_len for row in rows]
    q_lens = [row.q_len for row in rows]
    width = table.width(longest(kv_lens))
    with bench.memory.at_once():
        return BatchMetadata(
            seq_lens=place_int32(bench, "seq_lens", kv_lens),
            cum_seq_lens_q=place_int32(bench, "cum_seq_lens_q", running_sum(q_lens)),
            cum_seq_lens_kv=place_int32(bench, "cum_seq_lens_kv", running_sum(kv_lens)),
            block_tables=table.place(bench, table_rows(table, rows, width)),
            max_q_len=longest(q_lens) + case.max_len_slack,
            max_kv_len=longest(kv_lens) + case.max_len_slack,
        )


def table_rows(table: PageTable, rows: Sequence[Row], width: int) -> torch.Tensor:
    """Return page-table rows int32 [len(rows), width] of a batch."""
    ids = table.rows(
        [row.slot for row in rows],
        [table.pages_for(row.owned) for row in rows],
        [table.pages_for(row.kv_len) for row in rows],
        width,
    )
    return table.bury(ids, rows)
