"""The pages of a case's KV pool: their owners, and a picture in memory order."""

from collections.abc import Iterator

from attnfuzz.harness.report.svg import CHARACTER, Picture
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.planning.page_ids import DUMMY_PAGE, PageIds
from attnfuzz.reference.case import Case, Request, Step, TableTail, Tombstone, Unused
from attnfuzz.reference.shared_pools import pages_left

TINTS = 6
"""Number of tints of sequences; then they repeat."""

HELD = {Unused.NAN: "NaN", Unused.NUMBERS: "numbers"}
"""The contents of unused memory, in words."""

MOST_PAGES = 72
_CELL, _HEIGHT, _PER_ROW = 28.0, 20.0, 24


class PagePool:
    """The pages of `case`: `pages` are those of each sequence, in order; `poison` is the first one without an owner.

    The page `misread` is marked.
    """

    def __init__(self, case: Case, misread: int | None = None) -> None:
        size = case.geometry.page_size
        self.case = case
        self.size = size
        self._misread = misread
        ids = PageIds.of(case)
        self.pages = ids.own
        self.owners: dict[int, list[int]] = {}
        for slot, pages in self.pages.items():
            for page in dict.fromkeys(pages):
                self.owners.setdefault(page, []).append(slot)
        self._others = {page for pages in ids.other.values() for page in pages}
        self.poison = ids.end
        self.total = self.poison + case.pages.spare
        self._tints = {slot: f"slot{index % TINTS}" for index, slot in enumerate(self.pages)}

    def tint(self, slot: int) -> str:
        """Return the CSS class of a sequence's pages."""
        return self._tints[slot]

    @property
    def tail(self) -> tuple[str, str]:
        """The page table's content past a request's pages, in short and in words."""
        return {
            TableTail.ZEROS: (str(DUMMY_PAGE), f"{DUMMY_PAGE}, the dummy page"),
            TableTail.MINUS_ONE: ("-1", "-1"),
            TableTail.STALE: ("old", "stale ids, of other requests' pages"),
            TableTail.POISON: (str(self.poison), f"{self.poison}, a page full of {HELD[self.case.pages.free]}"),
        }[self.case.pages.tail]

    def has_tail(self, step: Step, request: Request) -> bool:
        """Return whether the page table is wider than a request's pages, by the longest request and the slack."""
        longest = max(other.kv_len for other in step.requests)
        return -(-request.kv_len // self.size) < -(-longest // self.size) + self.case.pages.table_slack

    def left(self, request: Request) -> int:
        """Count a request's first pages that have left the window, and belong to others."""
        return pages_left(self.case, request.q_len, request.kv_len)

    def draw(self, picture: Picture, top: float) -> float:
        """Draw the pool from `top` on; return its lower end."""
        words = f"KV pool: {count(self.total, 'page')} of {self.size}, {self.case.pages.order}"
        if any(self.has_tail(step, request) for step in self.case.steps for request in step.requests):
            words += f"; past a request's pages the table has {self.tail[1]}"
        if self.case.pages.tombstone is not Tombstone.NONE:
            words += f"; pages that have left the window are free, and {self.case.pages.tombstone} in the table"
        picture.text(0, top + 11, words, "dim")
        top += 18
        pages = [DUMMY_PAGE, *range(1 + self.case.pages.hole, self.total)]
        for index, page in enumerate(pages[:MOST_PAGES]):
            row, column = divmod(index, _PER_ROW)
            self._draw_page(picture, page, column * (_CELL + 2), top + row * (_HEIGHT + 2))
        rows = -(-min(len(pages), MOST_PAGES) // _PER_ROW)
        top += rows * (_HEIGHT + 2)
        for more in self._not_drawn(len(pages)):
            picture.text(0, top + 11, more, "dim")
            top += 16
        return top

    def _not_drawn(self, pages: int) -> Iterator[str]:
        if pages > MOST_PAGES:
            yield f"+ {pages - MOST_PAGES:,} more pages"
        if self.case.pages.hole:
            yield f"+ {self.case.pages.hole:,} pages after the dummy page, which have addresses and no memory"

    def _draw_page(self, picture: Picture, page: int, x: float, y: float) -> None:
        owners = self.owners.get(page, [])
        if page == DUMMY_PAGE:
            kind, title = "dummy", f"page {page}: the dummy page that padded rows point at, without an owner"
        elif page in self._others:
            kind, title = "dummy", f"page {page}: of the other layer group, {self.case.pages.other_group}"
        elif not owners:
            kind, title = "nan", f"page {page}: without an owner, full of {HELD[self.case.pages.free]}"
        else:
            kind = self.tint(owners[0])
            title = f"page {page}: of slot{'s' * (len(owners) > 1)} {', '.join(map(str, owners))}"
        picture.rect(x, y, _CELL, _HEIGHT, f"page {kind}", title=title)
        for index, other in enumerate(owners[1:4]):
            picture.rect(x, y + _HEIGHT - 4 * (index + 1), _CELL, 4, f"page {self.tint(other)}")
        if page == self._misread:
            picture.rect(x, y, _CELL, _HEIGHT, "read-wrongly", title=f"page {page}: read by mistake")
        # Beyond a hole, ids are too long for a cell: they count from its end, and the title has all digits.
        hole = self.case.pages.hole
        label = f"+{page - hole}" if hole and page else str(page)
        picture.text(x + (_CELL - len(label) * CHARACTER) / 2, y + 14, label, "on")
