"""The KV cache of a server whose engine assigns blocks: its contents persist from forward to forward."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from attnfuzz.kernels.interface.backend import Attended, Bench, WrittenCache
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.vllm.config import drafting
from attnfuzz.kernels.vllm.pool import VllmPool
from attnfuzz.reference.case import Case, Step, Unused


@dataclass(frozen=True)
class ScheduledTokens:
    """The new tokens of a request in a forward.

    Attributes:
        rows: The indices of the keys and values of all its tokens, up to the last new one.
        new: The number of new tokens.
        blocks: The blocks that the engine has assigned to it.
        beyond: The number of slots after the last new token that may hold anything after the forward.

    """

    rows: Sequence[int]
    new: int
    blocks: Sequence[int]
    beyond: int = 0

    def place(self, position: int, page_size: int) -> tuple[int, int]:
        """Return the block of a position, and its slot in the block. Raises RuntimeError if it has no block."""
        index = position // page_size
        if index >= len(self.blocks):
            raise RuntimeError(
                f"the engine runs tokens up to position {position} of a request that has "
                f"{len(self.blocks)} blocks of {page_size}"
            )
        return self.blocks[index], position % page_size


def drafted_beyond(case: Case) -> int:
    """Return how many positions after a sequence's last token may have blocks: for drafts, and a draft model's decodes.

    Another forward may be scheduled before it is known that a request has generated its last token.
    """
    forwards = 1 + case.serving.asynchronous
    return 2 * forwards * max(step.drafts - 1 for step in case.steps) if drafting(case) else 0


class EnginePool(VllmPool):
    """A pool, all of whose blocks except the null block are free initially.

    They hold `free`, or else the case's contents of free pages.
    """

    free: Unused | None = None

    def __init__(self, case: Case, bench: Bench, form: type[PagedKv]) -> None:
        spare = case.pages.spare - (-drafted_beyond(case) // case.geometry.page_size)
        pages = replace(case.pages, spare=spare, free=self.free or case.pages.free)
        super().__init__(replace(case, pages=pages), bench, form)
        self.paged.write(replace(case.steps[0], requests=()))

    def write_before(self, step: Step) -> None:
        """Save the contents of the pool before a forward of `step`. Only the engine changes them."""
        del step
        self._before = [each.clone() for each in self.paged.resident()]

    def written_by(self, chunks: Sequence[ScheduledTokens]) -> WrittenCache:
        """Return the pool before and after a forward, which must only write its new tokens into their blocks."""
        size = self.paged.page_size
        new = [
            (index, token, chunk, len(chunk.rows) - chunk.new + token)
            for index, chunk in enumerate(chunks)
            for token in range(chunk.new)
        ]
        places = [chunk.place(position, size) for _, _, chunk, position in new]
        free = [
            chunk.place(position, size)
            for chunk in chunks
            for position in range(len(chunk.rows), len(chunk.rows) + chunk.beyond)
        ]
        due = [chunk.rows[position] for _, _, chunk, position in new]
        return self._compared(places, due, [(index, token) for index, token, *_ in new], free)

    def attended_by(
        self, chunks: Sequence[ScheduledTokens], queries: torch.Tensor, first_rows: Sequence[int]
    ) -> tuple[Attended, ...]:
        """Return the attention expected for new tokens, over their request's tokens. `queries` has all tokens."""
        return tuple(
            Attended(first, queries[list(chunk.rows[len(chunk.rows) - chunk.new :])], *self._seen(chunk.rows))
            for first, chunk in zip(first_rows, chunks, strict=True)
        )

    def _seen(self, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of tokens, as attention reads them."""
        tokens = self.tokens
        return tokens.key[list(rows)], tokens.value[list(rows)]
