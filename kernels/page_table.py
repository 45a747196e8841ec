"""Rows of a page table, and what lies beyond the pages that a request owns."""

import random
from collections.abc import Sequence

import torch

from attnfuzz.kernels.backend import Bench
from attnfuzz.kernels.paged_kv import DUMMY_PAGE, PagedKv
from attnfuzz.reference.case import Case, TableTail


class PageTable:
    """Writes page-table rows as a server's req_to_token gives them: owned pages first, then the case's tail.

    `reach` is the number of pages per row that a kernel may read although the request does not own them all (queries
    padded past the request's end): those are the dummy page, whatever the tail.
    """

    def __init__(self, case: Case, kv: PagedKv) -> None:
        self._tail = case.pages.tail
        self._slack = case.pages.table_slack
        self._gap = case.views.table_gap
        self._kv = kv
        self._owned = sorted({page for pages in kv.pages.values() for page in pages}) or [DUMMY_PAGE]
        self._random = random.Random(case.seed)

    def pages_for(self, length: int) -> int:
        """Pages that hold `length` tokens."""
        return -(-length // self._kv.page_size)

    def width(self, length: int, multiple: int = 1) -> int:
        """Columns for requests of up to `length` tokens, with the case's slack, rounded up to a multiple."""
        columns = max(1, self.pages_for(length)) + self._slack
        return -(-columns // multiple) * multiple

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """An int32 table [len(slots), width]: `owned[b]` pages of slot b, dummy pages up to `reach[b]`, then the tail.

        A row of slot None is a padded row: the dummy page throughout.
        """
        table = []
        for slot, own, last in zip(slots, owned, reach, strict=True):
            if slot is None:
                table.append([DUMMY_PAGE] * width)
                continue
            row = self._kv.pages[slot][:own]
            row = row + [DUMMY_PAGE] * (min(last, width) - len(row))
            table.append(row + self._beyond(width - len(row)))
        return torch.tensor(table, dtype=torch.int32).reshape(len(table), width)

    def place(self, bench: Bench, table: torch.Tensor) -> torch.Tensor:
        """The table in guarded memory, with the case's gap between its rows."""
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
                return [self._random.choice(self._owned) for _ in range(count)]
