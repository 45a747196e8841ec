"""The KV cache of a server whose engine decides where tokens lie: it keeps the writes of forwards."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from attnfuzz.kernels.backend import Attended, Bench, WrittenCache
from attnfuzz.kernels.paged_kv import PagedKv
from attnfuzz.kernels.vllm.config import drafting
from attnfuzz.kernels.vllm.pool import VllmPool
from attnfuzz.reference.case import Case, Step, Unused


@dataclass(frozen=True)
class ScheduledTokens:
    """The new tokens of a request in a forward.

    Attributes:
        rows: The indices of the keys and values of all its tokens, up to the last new one.
        new: The number of new ones.
        blocks: The blocks that the engine has given to it.
        beyond: The number of places behind the last new one that may hold anything after the forward.

    """

    rows: Sequence[int]
    new: int
    blocks: Sequence[int]
    beyond: int = 0

    def place(self, position: int, page_size: int) -> tuple[int, int]:
        """(block, slot of the block) of a position. RuntimeError if the engine has given no block to it."""
        index = position // page_size
        if index >= len(self.blocks):
            raise RuntimeError(
                f"the engine runs tokens up to position {position} of a request that has "
                f"{len(self.blocks)} blocks of {page_size}"
            )
        return self.blocks[index], position % page_size


def drafted_beyond(case: Case) -> int:
    """The most tokens behind a slot's last one that have blocks: drafts, and as many that a draft model decodes.

    Another forward may be scheduled before the last token of a request is known, and that it is the last.
    """
    forwards = 1 + case.serving.asynchronous
    return 2 * forwards * max(step.drafts - 1 for step in case.steps) if drafting(case) else 0


class EnginePool(VllmPool):
    """A pool whose blocks are free at the beginning, but for the null block.

    They hold `free`, or the contents that the case has for free pages.
    """

    free: Unused | None = None

    def __init__(self, case: Case, bench: Bench, form: type[PagedKv]) -> None:
        spare = case.pages.spare - (-drafted_beyond(case) // case.geometry.page_size)
        pages = replace(case.pages, spare=spare, free=self.free or case.pages.free)
        super().__init__(replace(case, pages=pages), bench, form)
        self.paged.write(replace(case.steps[0], requests=()))

    def write_before(self, step: Step) -> None:
        """Keep the state of the pool before a forward of `step`: the engine's, which no one else changes."""
        del step
        self._before = [each.clone() for each in self.paged.resident()]

    def written_by(self, chunks: Sequence[ScheduledTokens]) -> WrittenCache:
        """The pool before and after a forward, which writes its new tokens into their blocks and nothing else."""
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
        """The attention due to new tokens: to all tokens of their own request so far. `queries` are those of tokens."""
        return tuple(
            Attended(first, queries[list(chunk.rows[len(chunk.rows) - chunk.new :])], *self._seen(chunk.rows))
            for first, chunk in zip(first_rows, chunks, strict=True)
        )

    def _seen(self, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of tokens as attention has them."""
        tokens = self.tokens
        return tokens.key[list(rows)], tokens.value[list(rows)]
