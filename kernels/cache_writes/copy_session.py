"""A copy within the cache: of pages to spare ones, or of a request's tokens among their slots."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

import torch

from attnfuzz.kernels.cache_writes.new_tokens import Metadata, WriteMetadata
from attnfuzz.kernels.cache_writes.writer_session import Contents, WriterSession
from attnfuzz.kernels.interface.backend import WrittenTensor
from attnfuzz.reference.case import Step

_MOST_MOVED = 64
"""Tokens of a request that are moved at most."""


@dataclass(frozen=True)
class Copy:
    """A copy of one slot, in pages and slots: of the `token`-th key of a step's `request`-th request."""

    request: int
    token: int
    source: tuple[int, int]
    target: tuple[int, int]


class CopyMetadata(WriteMetadata):
    """The metadata of a copy: that of a write, and its pairs."""

    def of(self, step: Step) -> Metadata:
        """Make the metadata of a step."""
        size = self._kv.page_size
        pairs = [[source, target] for _, _, source, target in self._page_pairs(step)]
        moved = self.moves(step)
        sources = [page * size + slot for page, slot in (each.source for each in moved)]
        targets = [page * size + slot for page, slot in (each.target for each in moved)]
        return super().of(step) | {
            "page_pairs": torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2),
            "source_slots": torch.tensor(sources, dtype=torch.int64),
            "target_slots": torch.tensor(targets, dtype=torch.int64),
        }

    def page_copies(self, step: Step) -> list[Copy]:
        """List the slots of copied pages: all of them, those behind the last key included."""
        size = self._kv.page_size
        return [
            Copy(request, index * size + slot, (source, slot), (target, slot))
            for request, index, source, target in self._page_pairs(step)
            for slot in range(size)
        ]

    def _page_pairs(self, step: Step) -> list[tuple[int, int, int, int]]:
        """List (request, index of its page, page, spare page): a page is copied several times if more are spare."""
        size = self._kv.page_size
        owned = [
            (number, index, page)
            for number, request in enumerate(step.requests)
            for index, page in enumerate(self._kv.pages[request.slot][: -(-request.kv_len // size)])
        ]
        spare = range(self._kv.poison_page, self._kv.total_pages)
        # Last pages first: they are the ones that a fork of a request copies, and the partial ones.
        return [(*each, target) for each, target in zip(cycle(reversed(owned)), spare, strict=False)] if owned else []

    def moves(self, step: Step) -> list[Copy]:
        """Draw the tokens that are moved within requests, none of them on a page that requests share.

        Accepted ones move together, as after the verification of a tree of drafts; or all of them move on by one, and
        the last to the front, which needs all to be read before one is written.
        """
        owners = Counter(page for pages in self._kv.pages.values() for page in pages)
        chance = random.Random(self._case.seed)
        size = self._kv.page_size
        moved = []
        for number, request in enumerate(step.requests):
            pages = self._kv.pages[request.slot]
            first = request.kv_len - chance.randint(1, min(request.kv_len, _MOST_MOVED)) if request.kv_len else 0
            own = [token for token in range(first, request.kv_len) if owners[pages[token // size]] == 1]
            accepted = sorted(chance.sample(own, chance.randint(0, len(own))))
            sources, targets = (own, own[1:] + own[:1]) if chance.random() < 0.5 else (accepted, own[: len(accepted)])
            at = [(pages[token // size], token % size) for token in range(request.kv_len)]
            pairs = zip(sources, targets, strict=True)
            moved += [Copy(number, source, at[source], at[target]) for source, target in pairs]
        return moved


class CopySession(WriterSession):
    """A copy within the pool, whose pages hold all keys of a step."""

    stores = False
    planner_type = CopyMetadata

    _metadata: CopyMetadata

    def _state(self, step: Step) -> Step:
        return step

    def _new(self, step: Step) -> dict[str, torch.Tensor]:
        del step
        return {}

    def _copies(self, step: Step) -> list[Copy]:
        pages = self._writer.takes("page_pairs")
        return self._metadata.page_copies(step) if pages else self._metadata.moves(step)

    def _owners(self, step: Step) -> tuple[tuple[int, int], ...]:
        return tuple((each.request, each.token) for each in self._copies(step))

    def _due(self, step: Step, before: Contents) -> Iterator[WrittenTensor]:
        copies = self._copies(step)
        sources, targets = (
            self._resident(torch.tensor(places, dtype=torch.int64).reshape(-1, 2).T)
            for places in ([each.source for each in copies], [each.target for each in copies])
        )
        dtype = self._case.geometry.kv_dtype.torch_dtype
        for name, pool in self._pools().items():
            at = sources.to(pool.device)
            held = before[name][at[0], at[1]].view(dtype)
            yield self._in_pool(name, before[name], pool, targets, (held, held))
