"""Defects of page tables: how wide they are, and whose pages they hold."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from attnfuzz.kernels.defects.defect import BugClass, Layer
from attnfuzz.kernels.defects.planting import Planted
from attnfuzz.kernels.paged_kv import PagedKv
from attnfuzz.kernels.plan import BatchMetadata, PageTable, Row
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.reference.case import Case

DEFECTS = Planted(Layer.PLANNER)


@DEFECTS.add("partial_page_left_out", BugClass.TABLE_WIDTH_OR_TAIL, "MaxText PR #1777 (pages by floor division)")
class FloorsPages(PageTable):
    """A length's pages are rounded down: a last page that is not full is left out."""

    def pages_for(self, length: int) -> int:
        """The full ones."""
        return length // self._kv.page_size


@DEFECTS.add(
    "table_without_newest_token",
    BugClass.TABLE_WIDTH_OR_TAIL,
    "SGLang PR #26753 (lengths that a verify has not advanced)",
)
class CountsPagesBeforeWrite(PageTable):
    """Pages are those of the length before the newest token."""

    def pages_for(self, length: int) -> int:
        """Those of a token less."""
        return super().pages_for(max(0, length - 1))


@DEFECTS.add(
    "last_page_of_neighbour",
    BugClass.PAGE_LAYOUT,
    "sglang-jax issue #20 (locations of the second request and those after it)",
)
class TakesNeighboursLastPage(PageTable):
    """A request's last page is the last one of the request before it."""

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """The table, with the last pages moved down a row."""
        table = super().rows(slots, owned, reach, width)
        right = table.clone()
        for b in range(1, len(owned)):
            if owned[b - 1] and owned[b]:
                table[b, owned[b] - 1] = right[b - 1, owned[b - 1] - 1]
        return table


@DEFECTS.add("batch_row_taken_for_slot", BugClass.WRONG_INDEX_SPACE, "SGLang PR #26534")
class TakesRowForSlot(PageTable):
    """The pages of a request are looked up by its row of the batch, not by its slot."""

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """The table of slots 0, 1, 2, ..."""
        return super().rows([None if slot is None else b for b, slot in enumerate(slots)], owned, reach, width)


@DEFECTS.add(
    "page_ids_divided_twice", BugClass.WRONG_INDEX_SPACE, "SGLang PR #38187 (ids of pages and of tokens confused)"
)
class DividesIdsTwice(PageTable):
    """Ids of pages are divided by the page size, as if they were those of tokens."""

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """The table, divided once more."""
        return super().rows(slots, owned, reach, width) // self._kv.page_size


@DEFECTS.add("page_ids_wrap", BugClass.INT32_OFFSETS, "vLLM issue #50427 (page ids beyond what offsets can hold)")
class WrapsPageIds(PageTable):
    """Ids of pages wrap at 128: a stand-in, at the size of small cases, for those of 16 bits."""

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """The table, wrapped where it is not -1."""
        table = super().rows(slots, owned, reach, width)
        return torch.where(table < 0, table, table % 128)


@DEFECTS.add(
    "window_pool_a_page_off",
    BugClass.WRONG_INDEX_SPACE,
    "SGLang PR #33379 (a reserved row shifts the sliding window's index space)",
)
class CountsWindowPoolFromOne(PageTable):
    """A layer with a window looks up pages of a pool that begins one page later."""

    def __init__(self, case: Case, kv: PagedKv) -> None:
        super().__init__(case, kv)
        self._offset = int(case.geometry.window_left >= 0)

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """The table, moved up by a page where there is a window."""
        return super().rows(slots, owned, reach, width) + self._offset


@DEFECTS.add("padded_rows_point_nowhere", BugClass.PLANNED_THEN_PADDED, "vLLM issue #43810 (padding as id -1)")
class PadsWithMinusOne(PageTable):
    """Padded rows, which have a key, point at no page."""

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """The table, with -1 in padded rows."""
        table = super().rows(slots, owned, reach, width)
        table[[slot is None for slot in slots]] = -1
        return table


@DEFECTS.add(
    "table_width_of_first_request", BugClass.TABLE_WIDTH_OR_TAIL, "SGLang PR #26753 (a table sized by a stale length)"
)
class TakesWidthOfFirst(MhaSession):
    """A page table is as wide as the first request needs."""

    def _plan(self, rows: Sequence[Row]) -> BatchMetadata:
        plan = super()._plan(rows)
        width = self._table.width(rows[0].kv_len)
        return replace(plan, block_tables=self._table.place(self._bench, plan.block_tables[:, :width]))
