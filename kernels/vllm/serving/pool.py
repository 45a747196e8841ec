"""The KV cache of a server whose engine decides where tokens lie: it keeps the writes of forwards."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from msgspec.structs import replace

from attnfuzz.kernels.backend import Attended, Bench, WrittenCache
from attnfuzz.kernels.paged_kv import PagedKv
from attnfuzz.kernels.vllm.pool import VllmPool
from attnfuzz.reference.case import Case, Step


@dataclass(frozen=True)
class ScheduledTokens:
    """The new tokens of a request in a forward.

    Attributes:
        rows: The indices of the keys and values of all its tokens, up to the last new one.
        new: The number of new ones.
        blocks: The blocks that the engine has given to it.

    """

    rows: Sequence[int]
    new: int
    blocks: Sequence[int]


class EnginePool(VllmPool):
    """A pool whose blocks are free at the beginning, but for the null block."""

    def __init__(self, case: Case, bench: Bench, form: type[PagedKv]) -> None:
        super().__init__(case, bench, form)
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
        places = [(chunk.blocks[position // size], position % size) for _, _, chunk, position in new]
        due = [chunk.rows[position] for _, _, chunk, position in new]
        return self._compared(places, due, [(index, token) for index, token, *_ in new])

    def attended_by(
        self, chunks: Sequence[ScheduledTokens], queries: torch.Tensor, first_rows: Sequence[int]
    ) -> tuple[Attended, ...]:
        """The attention due to new tokens: to all tokens of their own request so far. `queries` are those of tokens."""
        tokens = self.paged.tokens
        return tuple(
            Attended(
                first_row=first,
                query=queries[list(chunk.rows[len(chunk.rows) - chunk.new :])],
                key=tokens.key[list(chunk.rows)],
                value=tokens.value[list(chunk.rows)],
            )
            for first, chunk in zip(first_rows, chunks, strict=True)
        )
