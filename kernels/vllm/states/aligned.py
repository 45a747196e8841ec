"""The blocks of a server that keeps states for a prefix cache (`mamba_cache_mode` align).

A table has a column for each block of tokens. A step's state goes to the column of its last token, and those after
drafts to the columns behind it; a step that comes into another column begins with a copy of the state. After a verify,
the state at the end of a block, if it has been reached, is copied to the column of that block. See vLLM 0.33.0,
v1/worker/mamba_utils.py:1446 (preprocess_mamba) and :369 (postprocess_mamba_fused_kernel).
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from attnfuzz.kernels.vllm.states.demands import Demands, next_accepted
from attnfuzz.reference.case import Request
from attnfuzz.reference.recurrent.case import StateCase, StateMode, StateRow, StateStep

_NULL: Final = 0
"""The block of columns without a state."""

_PREFIX: Final = 1
"""The block with the state that requests find in the prefix cache, of those that begin behind the first block."""

_SPARE: Final = 2
"""Blocks of no request."""


@dataclass(frozen=True)
class AlignedRow:
    """A request of a step: the blocks that it reads (None: none) and writes, and (block, tokens) of block ends.

    It `begins` in the case with the state of earlier steps, which is then in the block that it reads.
    """

    read: int | None
    written: tuple[int, ...]
    committed: tuple[tuple[int, int], ...]
    begins: bool


@dataclass
class _Sequence:
    """A request on the server, with the columns of its table that have a block, and that of its state."""

    lane: int
    shares: bool
    state: int
    blocks: dict[int, int] = field(default_factory=dict)


class AlignedBlocks:
    """The block tables of a case's sequences, and the blocks of each step's states.

    `blocks` is the number of blocks of the pool, and `of_lane` are those which the requests of a lane hand on.
    """

    def __init__(self, case: StateCase, demands: Demands) -> None:
        self._case, self._size = case, demands.block_size
        self._sequences: dict[int, _Sequence] = {}
        self.of_lane: dict[int, list[int]] = {lane: [] for lane in range(case.lanes)}
        steps = zip(range(len(case.steps)), case.steps, demands.case.steps, strict=True)
        planned = [self._planned(index, step, demand.requests) for index, step, demand in steps]
        self.blocks = 1 + max([_PREFIX, *(each for own in self.of_lane.values() for each in own)]) + _SPARE
        ids = list(range(1, self.blocks))
        if case.scattered:
            random.Random(case.seed).shuffle(ids)
        self._ids = [_NULL, *ids]
        self.of_lane = {lane: [self._ids[each] for each in own] for lane, own in self.of_lane.items()}
        self.steps = [[self._numbered(row) for row in rows] for rows in planned]

    def tables(self) -> Mapping[int, list[int]]:
        """Return the block table of each sequence at its end."""
        return {
            number: [self._ids[each.blocks.get(column, _NULL)] for column in range(1 + max(each.blocks))]
            for number, each in self._sequences.items()
        }

    def columns(self, tokens: int) -> int:
        """Return the number of columns of a request's table after that many tokens."""
        return -(-tokens // self._size) + self._case.drafts

    def _numbered(self, row: AlignedRow) -> AlignedRow:
        """Return a row with the ids of its blocks."""
        return AlignedRow(
            None if row.read is None else self._ids[row.read],
            tuple(self._ids[each] for each in row.written),
            tuple((self._ids[each], tokens) for each, tokens in row.committed),
            row.begins,
        )

    def _planned(self, index: int, step: StateStep, requests: Sequence[Request]) -> list[AlignedRow]:
        remaining, accepted = iter(requests), next_accepted(self._case, index)
        return [
            self._row(step, row, next(remaining), accepted[row.lane])
            if row.tokens
            else AlignedRow(None, (), (), begins=False)
            for row in step.rows
        ]

    def _row(self, step: StateStep, row: StateRow, request: Request, accepted: int) -> AlignedRow:
        begin, verifies = request.kv_len - request.q_len, step.mode is StateMode.VERIFY
        begins = request.slot not in self._sequences
        if begins:
            shares = begin == self._size and not verifies
            sequence = self._sequences[request.slot] = _Sequence(row.lane, shares, (begin - 1) // self._size)
            for column in range(sequence.state, sequence.state + row.accepted) if begin else ():
                self._block(sequence, column)
        sequence = self._sequences[request.slot]
        read = self._block(sequence, sequence.state + (row.accepted - 1 if verifies else 0)) if begin else None
        at = (request.kv_len - 1) // self._size
        columns = [self._block(sequence, at + draft) for draft in range(1 + self._case.drafts)]
        sequence.state = at
        committed = []
        if verifies:
            end = (begin + accepted) // self._size * self._size
            column = end // self._size - 1
            if end > begin and (column, end) != (at, begin + 1):
                committed.append((self._block(sequence, column), end - begin))
        return AlignedRow(read, tuple(columns[: row.tokens if verifies else 1]), tuple(committed), begins and begin > 0)

    def _block(self, sequence: _Sequence, column: int) -> int:
        """Return the block in a column of a sequence's table: its first one may be that of the prefix cache."""
        if column not in sequence.blocks:
            own = self.of_lane[sequence.lane]
            taken = len(sequence.blocks) - (_PREFIX in sequence.blocks.values())
            if sequence.shares and not sequence.blocks:
                sequence.blocks[column] = _PREFIX
            elif taken < len(own):
                sequence.blocks[column] = own[taken]
            else:
                own.append(2 + sum(map(len, self.of_lane.values())))
                sequence.blocks[column] = own[-1]
        return sequence.blocks[column]
