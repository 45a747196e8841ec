"""Defects of planners: in the rows of a batch, in their lengths and pages, and in when planning happens."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.defects.planting import DefectGroup
from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.interface.ops_table import OpsTable
from attnfuzz.kernels.planning.lengths import longest
from attnfuzz.kernels.planning.page_ids import DUMMY_PAGE
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.plan import BatchMetadata, PageTable, Row
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession
from attnfuzz.kernels.trtllm.prefill import Chunk, MlaPrefill
from attnfuzz.reference.case import Case, Mode, Step, Tombstone
from attnfuzz.reference.mistake import Mistake

DEFECTS: list[Defect] = []

_PADDED = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.PLANNED_THEN_PADDED)
_ROWS = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.ROWS_DIFFER_FROM_METADATA)
_SHORT_KV = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.SHORT_KV)
_INDICES = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.WRONG_INDEX_SPACE)
_TABLES = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.TABLE_WIDTH_OR_TAIL)
_OFFSETS = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.INT32_OFFSETS)
_STALE = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.STALE_TAILS)
_REPLAYS = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.CAPTURE_AND_REPLAY_DIFFER)
_MASKS = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.MASK_ROWS)
_LAYOUTS = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.PAGE_LAYOUT)
_WINDOWS = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.WINDOW)


_WRAP = 512
"""Modulus of defects that stand in for wrapping at 16 and 32 bits, since cases are small."""


@_PADDED.add("decode_planned_before_padding", "SGLang PR #24566, reverted by PR #24856")
class PlansDecodeBeforePadding(MhaSession):
    """A decode has metadata for its requests, but queries for the padded batch."""

    def _planned_rows(self, step: Step) -> list[Row]:
        return Row.real(step)


@_ROWS.add(
    "context_batch_from_rows", "SGLang PR #21649 (its fix: a batch size taken from the metadata)", Mistake.GIVEN_ROWS
)
class DerivesContextBatch(MhaSession):
    """The context kernel's batch size is the query rows divided by the longest query, as for the decode kernel."""

    def context_batch(self, step: Step, plan: BatchMetadata) -> int:
        """Return the number of rows divided by the longest query."""
        stride = step.tokens_per_request or longest(request.q_len for request in step.requests)
        return math.ceil(step.padded_tokens / stride)


@_ROWS.add(
    "verify_rows_counted_with_bonus",
    "SGLang PR #23962 (accept lengths with and without the bonus token)",
    Mistake.GIVEN_ROWS,
)
class CountsVerifyRowsWithBonus(MhaSession):
    """The padded batch size of a verify is computed with one token too many per request."""

    def _planned_rows(self, step: Step) -> list[Row]:
        rows = super()._planned_rows(step)
        if step.mode is not Mode.TARGET_VERIFY:
            return rows
        return rows[: max(len(step.requests), step.padded_tokens // (step.tokens_per_request + 1))]


@_SHORT_KV.add("verify_lengths_without_drafts", "SGLang PR #40214", Mistake.GIVEN_LENGTH)
class VerifiesWithoutDrafts(MhaSession):
    """The lengths of a verify exclude its draft tokens."""

    def _planned_rows(self, step: Step) -> list[Row]:
        rows = super()._planned_rows(step)
        if step.mode is not Mode.TARGET_VERIFY:
            return rows
        return [_shortened(row, max(0, row.kv_len - step.tokens_per_request)) for row in rows]


@_INDICES.add(
    "rows_sorted_by_slot",
    "ProjectDMX/DMI issue #67 (rows of vLLM's batch in another order)",
    Mistake.GIVEN_LENGTH,
    Mistake.GIVEN_PAGES,
    Mistake.GIVEN_ROWS,
)
class SortsRowsBySlot(MhaSession):
    """Metadata is in the order of sequences, but queries are in batch order."""

    def _planned_rows(self, step: Step) -> list[Row]:
        return sorted(super()._planned_rows(step), key=lambda row: math.inf if row.slot is None else row.slot)


@_SHORT_KV.add(
    "empty_raised_to_one_key", "FlashInfer issue #3047 (no keys for some queries is legal)", Mistake.GIVEN_LENGTH
)
class RaisesEmptyToOne(MhaSession):
    """Lengths are raised to at least 1."""

    def _plan(self, rows: Sequence[Row]) -> BatchMetadata:
        return super()._plan([replace(row, kv_len=max(1, row.kv_len)) for row in rows])


@_SHORT_KV.add("kv_raised_to_queries", "SGLang PR #24856 (rows with fewer keys than queries)", Mistake.GIVEN_LENGTH)
class RaisesKvToQueries(MhaSession):
    """KV lengths are raised to at least the number of queries."""

    def _plan(self, rows: Sequence[Row]) -> BatchMetadata:
        return super()._plan([replace(row, kv_len=max(row.q_len, row.kv_len)) for row in rows])


@_SHORT_KV.add(
    "empty_requests_left_out",
    "vLLM PR #49294 (requests without context in a chunk)",
    Mistake.GIVEN_LENGTH,
    Mistake.GIVEN_PAGES,
)
class LeavesEmptyRequestsOut(MhaSession):
    """Requests without keys are missing from lengths and pages, but not from the cumulative query lengths."""

    def _plan(self, rows: Sequence[Row]) -> BatchMetadata:
        plan = super()._plan(rows)
        kept = plan.seq_lens > 0
        return replace(
            plan,
            seq_lens=self._bench.memory.copy("seq_lens", plan.seq_lens[kept]),
            block_tables=self._table.place(self._bench, plan.block_tables[kept]),
        )


@_TABLES.add("full_last_page_is_empty", "FlashInfer issue #320 (last_page_len is not validated)", Mistake.GIVEN_LENGTH)
class EmptiesFullLastPage(MhaSession):
    """The length of the last page is the length modulo the page size, which is 0 for a full page."""

    def _plan(self, rows: Sequence[Row]) -> BatchMetadata:
        return super()._plan([_shortened(row, self._total(row.kv_len)) for row in rows])

    def _total(self, kv_len: int) -> int:
        size = self._kv.page_size
        return max(0, self._table.pages_for(kv_len) - 1) * size + kv_len % size


@_TABLES.add(
    "lengths_of_whole_pages", "simpler PR #72 (attention to the empty slots of a last page)", Mistake.GIVEN_LENGTH
)
class CountsWholePages(MhaSession):
    """Lengths are rounded up to whole pages, including the empty slots of the last page."""

    def _plan(self, rows: Sequence[Row]) -> BatchMetadata:
        size = self._kv.page_size
        return super()._plan([replace(row, kv_len=self._table.pages_for(row.kv_len) * size) for row in rows])


@_OFFSETS.add("lengths_wrap", "vLLM issue #50427 (offsets into the KV cache overflow)", Mistake.GIVEN_LENGTH)
class WrapsLengths(MhaSession):
    """Lengths wrap at 512. Stands for 16-bit lengths, scaled down to small cases."""

    def _plan(self, rows: Sequence[Row]) -> BatchMetadata:
        return super()._plan([_shortened(row, row.kv_len % _WRAP) for row in rows])


class KeepsPlans(MhaSession):
    """A session that reuses the plan of an earlier batch that looks the same."""

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        super().__init__(ops, case, bench)
        self._plans: dict[tuple[object, ...], BatchMetadata] = {}

    def _looks(self, row: Row) -> object:
        """Return the properties of a row that decide whether a plan is reused."""
        raise NotImplementedError

    def _plan(self, rows: Sequence[Row]) -> BatchMetadata:
        looks = tuple(map(self._looks, rows))
        if looks not in self._plans:
            self._plans[looks] = super()._plan(rows)
        return self._plans[looks]


@_STALE.add(
    "plan_kept_while_pages_stay",
    "rtp-llm PR #1254 (plans again only where the topology of pages changes)",
    Mistake.GIVEN_LENGTH,
    Mistake.GIVEN_PAGES,
)
class KeepsPlanOfSamePages(KeepsPlans):
    """A step is planned again only if a request has reached another page."""

    def _looks(self, row: Row) -> object:
        return row.slot, row.q_len, self._table.pages_for(row.kv_len)


@_STALE.add("plan_kept_for_same_lengths", "SGLang PR #15227 (metadata of the batch before)", Mistake.GIVEN_PAGES)
class KeepsPlanOfSameLengths(KeepsPlans):
    """A plan is reused for every batch with the same lengths, even for other requests."""

    def _looks(self, row: Row) -> object:
        return row.q_len, row.kv_len


@_OFFSETS.add(
    "key_offsets_wrap", "FlashInfer issue #2134 (32 bit offsets overflow)", Mistake.KEYS_REPLACED, Mistake.OTHER_REQUEST
)
class WrapsKeyOffsets(MlaPrefill):
    """Offsets of packed keys wrap at 512. Stands for 32-bit offsets, scaled down to small cases."""

    def _key_offsets(self, chunk: Chunk) -> list[int]:
        return [offset % _WRAP for offset in super()._key_offsets(chunk)]


@_REPLAYS.add(
    "draft_lengths_not_spread",
    "SGLang PR #21987",
    Mistake.GIVEN_LENGTH,
    Mistake.GIVEN_ROWS,
    Mistake.LENGTH,
    Mistake.CAUSAL_LIMIT,
    Mistake.NO_KEYS,
)
class SpreadsQueriesAlone(MlaSession):
    """Draft extends pad their queries to a stride, but not their lengths."""

    def _spread(self, step: Step, stride: int) -> list[Row]:
        return [replace(row, q_len=stride) for row in Row.real(step)]


@_MASKS.add(
    "short_drafts_see_a_key_more",
    "SGLang PR #21987 (lengths of queries padded to a stride)",
    Mistake.GIVEN_LENGTH,
    Mistake.LENGTH,
)
class ShowsShortDraftsAKeyMore(MlaSession):
    """The KV length of a short draft extend with padded queries is one too large."""

    def _spread(self, step: Step, stride: int) -> list[Row]:
        rows = super()._spread(step, stride)
        return [
            replace(row, kv_len=row.kv_len + (request.q_len < stride))
            for row, request in zip(rows, step.requests, strict=True)
        ]


def _shortened(row: Row, kv_len: int) -> Row:
    """Shorten a row's request to this length, pages included."""
    return replace(row, kv_len=kv_len, owned=min(row.owned, kv_len))


@_TABLES.add("partial_page_left_out", "MaxText PR #1777 (pages by floor division)", Mistake.GIVEN_PAGES)
class FloorsPages(PageTable):
    """The number of pages is rounded down, which drops a partial last page."""

    def pages_for(self, length: int) -> int:
        """Return the number of full pages."""
        return length // self._kv.page_size


@_TABLES.add(
    "table_without_newest_token", "SGLang PR #26753 (lengths that a verify has not advanced)", Mistake.GIVEN_PAGES
)
class CountsPagesBeforeWrite(PageTable):
    """Pages are computed from the length before the newest token."""

    def pages_for(self, length: int) -> int:
        """Return the number of pages without the last token."""
        return super().pages_for(max(0, length - 1))


@_LAYOUTS.add(
    "last_page_of_neighbour",
    "sglang-jax issue #20 (locations of the second request and those after it)",
    Mistake.GIVEN_PAGES,
)
class TakesNeighboursLastPage(PageTable):
    """The last page of a request is that of the previous request."""

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """Return the table, with the last pages moved down by a row."""
        table = super().rows(slots, owned, reach, width)
        right = table.clone()
        for b in range(1, len(owned)):
            if owned[b - 1] and owned[b]:
                table[b, owned[b] - 1] = right[b - 1, owned[b - 1] - 1]
        return table


@_INDICES.add("batch_row_taken_for_slot", "SGLang PR #26534", Mistake.GIVEN_PAGES)
class TakesRowForSlot(PageTable):
    """The pages of a request are looked up by its batch row instead of its sequence."""

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """Return the page table of sequences 0, 1, 2, ..."""
        return super().rows([None if slot is None else b for b, slot in enumerate(slots)], owned, reach, width)


@_INDICES.add("page_ids_divided_twice", "SGLang PR #38187 (ids of pages and of tokens confused)", Mistake.GIVEN_PAGES)
class DividesIdsTwice(PageTable):
    """Page ids are divided by the page size, as if they were token ids."""

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """Return the table, divided once more."""
        return super().rows(slots, owned, reach, width) // self._kv.page_size


@_OFFSETS.add("page_ids_wrap", "vLLM issue #50427 (page ids beyond the range of offsets)", Mistake.GIVEN_PAGES)
class WrapsPageIds(PageTable):
    """Page ids wrap at 128. Stands for 16-bit page ids, scaled down to small cases."""

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """Return the table, wrapped where it is not -1."""
        table = super().rows(slots, owned, reach, width)
        return torch.where(table < 0, table, table % 128)


@_INDICES.add(
    "window_pool_a_page_off",
    "SGLang PR #33379 (a reserved row shifts the sliding window's index space)",
    Mistake.GIVEN_PAGES,
)
class CountsWindowPoolFromOne(PageTable):
    """A windowed layer looks up pages in a pool that begins one page later."""

    def __init__(self, case: Case, kv: PagedKv) -> None:
        super().__init__(case, kv)
        self._offset = int(case.geometry.window_left >= 0)

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """Return the table, moved up by a page if there is a window."""
        return super().rows(slots, owned, reach, width) + self._offset


@_PADDED.add("padded_rows_point_nowhere", "vLLM issue #43810 (padding as id -1)", Mistake.GIVEN_PAGES)
class PadsWithMinusOne(PageTable):
    """Padded rows, which have one key, get page id -1."""

    def rows(self, slots: Sequence[int | None], owned: Sequence[int], reach: Sequence[int], width: int) -> torch.Tensor:
        """Return the table, with -1 in padded rows."""
        table = super().rows(slots, owned, reach, width)
        table[[slot is None for slot in slots]] = -1
        return table


@_TABLES.add("table_width_of_first_request", "SGLang PR #26753 (a table sized by a stale length)", Mistake.GIVEN_PAGES)
class TakesWidthOfFirst(MhaSession):
    """The page table is only as wide as the first request needs."""

    def _plan(self, rows: Sequence[Row]) -> BatchMetadata:
        plan = super()._plan(rows)
        width = self._table.width(rows[0].kv_len)
        return replace(plan, block_tables=self._table.place(self._bench, plan.block_tables[:, :width]))


@_INDICES.add("window_pages_not_translated", "SGLang PR #26531", Mistake.GIVEN_PAGES)
class LeavesPagesOfFullPool(PageTable):
    """A windowed layer uses page ids of the other layers' pool."""

    def _pages(self, slot: int) -> list[int]:
        return self._kv.full_pages[slot]

    def bury(self, table: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
        """Return the table unchanged: it keeps pages of the full pool."""
        return table


@_STALE.add("window_pages_of_the_step_before", "SGLang PR #25889 (a translation that is cached)", Mistake.GIVEN_PAGES)
class TranslatesAsBefore(PageTable):
    """Pages are translated by the mapping of the previous step; new pages become the dummy page."""

    _known: dict[int, int] | None = None

    def bury(self, table: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
        """Return the table, with pages translated by the mapping of the previous step."""
        buried = super().bury(table, rows)
        if self._case.pages.tombstone is Tombstone.NONE:
            return buried
        mapping: dict[int, int] = {}
        for b, row in enumerate(rows):
            if row.slot is not None:
                for index in range(self.left(row), self.pages_for(row.owned)):
                    full = self._kv.full_pages[row.slot][index]
                    mapping[full] = self._kv.pages[row.slot][index]
                    buried[b, index] = mapping[full] if self._known is None else self._known.get(full, DUMMY_PAGE)
        self._known = mapping
        return buried


@_WINDOWS.add(
    "page_at_the_window_edge_freed", "SGLang PR #29860 (an eviction frontier a page too far)", Mistake.GIVEN_PAGES
)
class FreesPageAtEdge(PageTable):
    """A page is freed as soon as its first token has left the window."""

    def left(self, row: Row) -> int:
        """Return the number of pages with at least one token before the window."""
        kept = self._case.pages.tombstone is Tombstone.NONE
        first = row.kv_len - row.q_len - self._case.geometry.window_left
        return super().left(row) if kept else min(self.pages_for(max(0, first)), self.pages_for(row.owned))


@_WINDOWS.add(
    "table_begins_at_the_window",
    "tt-metal PR #45184 (a table of the window under absolute positions)",
    Mistake.GIVEN_PAGES,
)
class BeginsAtWindow(PageTable):
    """The first columns hold the pages of the window, but are indexed by absolute positions."""

    def bury(self, table: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
        """Return the table, with rows moved to the left and filled up with the dummy page."""
        for b, row in enumerate(rows):
            left = 0 if row.slot is None else self.left(row)
            if left:
                moved = table[b, left:].clone()
                table[b] = DUMMY_PAGE
                table[b, : len(moved)] = moved
        return table


@_INDICES.add("table_of_the_other_group", "vllm-metal PR #545 (group 0 for all layers)", Mistake.GIVEN_PAGES)
class TakesTableOfOtherGroup(PageTable):
    """Attention looks up the pages of the other layer group that shares the pool."""

    def _pages(self, slot: int) -> list[int]:
        own, other = self._kv.pages[slot], self._kv.other
        # As wide as the group's own row: the other group may have fewer pages.
        return own if other is None else (other.pages[slot] * len(own))[: len(own)]
