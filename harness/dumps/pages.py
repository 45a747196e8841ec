"""The KV pool of a case: the pages that a call's lengths refer to, and nothing around them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from attnfuzz.kernels.entry_points import RequestSpan


@dataclass(frozen=True)
class PageMap:
    """Which pages of a pool are kept, by their ids, ascending, and how they are numbered anew, in the same order.

    `total` is how many pages the pool had. With `spare` there is one page more behind those that are kept, which
    stands for every other page of the pool: it can be read, and belongs to nobody.
    """

    total: int
    kept: tuple[int, ...]
    spare: bool

    @classmethod
    def of(cls, total: int, spans: Iterable[RequestSpan], table: torch.Tensor) -> "PageMap":
        """Keep the pages that the lengths of requests reach; spare is for what else is in the page `table`."""
        kept = sorted({page for span in spans for page in span.pages if 0 <= page < total})
        ids = table.long()
        inside = ids[(ids >= 0) & (ids < total)]
        others = not bool(torch.isin(inside, torch.tensor(kept, dtype=torch.long)).all())
        # A pool without a page has no address, so that a wild access could not be told from a null pointer.
        return cls(total, tuple(kept), others or not kept)

    @property
    def pages(self) -> int:
        """Pages of the new pool."""
        return len(self.kept) + self.spare

    def renumbered(self, table: torch.Tensor) -> torch.Tensor:
        """A page table of the new ids. Ids outside of the pool stay as far outside as they were."""
        ids = table.long()
        kept = torch.tensor(self.kept, dtype=torch.long)
        place = torch.searchsorted(kept, ids).clamp(max=max(len(kept) - 1, 0))
        known = kept[place] == ids if len(kept) else torch.zeros_like(ids, dtype=torch.bool)
        new = torch.where(known, place, len(kept))
        new = torch.where(ids >= self.total, ids - self.total + self.pages, new)
        return torch.where(ids < 0, ids, new).to(table.dtype)

    def covered(self, spans: Iterable[RequestSpan], page_size: int) -> torch.Tensor:
        """Which slots hold tokens of requests: bool [pages, page_size]."""
        slots = torch.zeros(self.pages, dtype=torch.long)
        places = {page: place for place, page in enumerate(self.kept)}
        for span in spans:
            for index, page in enumerate(span.pages):
                if page in places:
                    used = min(page_size, span.kv_len - index * page_size)
                    slots[places[page]] = max(int(slots[places[page]]), used)
        return torch.arange(page_size) < slots.unsqueeze(1)


def in_ranges(numbers: Sequence[int], most: int = 12) -> str:
    """Ascending numbers as people write them, "3 to 5, 9"; the first `most` ranges, and how many numbers follow."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    words = [str(first) if first == last else f"{first} to {last}" for first, last in ranges[:most]]
    left = sum(last - first + 1 for first, last in ranges[most:])
    return ", ".join(words) + (f" and {left} more" if left else "")
