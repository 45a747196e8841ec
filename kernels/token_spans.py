"""Which tokens lie where in a pool of pages: runs, in columns, since large pools have hundreds of thousands."""

from array import array
from collections.abc import Sequence

import torch


class TokenSpans:
    """Runs of tokens, in columns: each is so many tokens from one on, which lie in a page from a slot on."""

    def __init__(self) -> None:
        self.pages, self.slots, self.tokens, self.counts = (array("q") for _ in range(4))

    def add(self, pages: Sequence[int], first_token: int, count: int, page_size: int) -> None:
        """Tokens that fill pages from their beginnings on, the last one as far as they reach."""
        full, rest = divmod(count, page_size)
        used = full + bool(rest)
        self.pages.extend(pages[:used])
        self.slots.extend([0] * used)
        self.tokens.extend(range(first_token, first_token + count, page_size))
        self.counts.extend([page_size] * full + [rest] * bool(rest))

    def add_one(self, page: int, slot: int, token: int) -> None:
        """A token by itself."""
        for column, value in zip(
            (self.pages, self.slots, self.tokens, self.counts), (page, slot, token, 1), strict=True
        ):
            column.append(value)

    def taken(self) -> set[tuple[int, int]]:
        """(page, slot) of all tokens."""
        columns = zip(self.pages, self.slots, self.counts, strict=True)
        return {(page, at) for page, slot, count in columns for at in range(slot, slot + count)}

    def positions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """For each token its page and slot [2, tokens], and which it is [tokens]: int64."""
        columns = [torch.frombuffer(column, dtype=torch.int64) for column in (self.pages, self.slots, self.tokens)]
        counts = torch.frombuffer(self.counts, dtype=torch.int64)
        page, slot, token = (column.repeat_interleave(counts) for column in columns)
        within = torch.arange(len(page)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        return torch.stack((page, slot + within)), token + within
