"""The requests of a case of recurrent state as sequences of a server: lanes that requests hand on to each other."""

from collections.abc import Callable
from typing import Final

from attnfuzz.reference.case import Request
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry
from attnfuzz.reference.recurrent.case import StateMode, StateRow

_BEFORE: Final = 7
"""The tokens before a case of a request that continues."""

ANY_LAYER: Final = Geometry(
    q_heads=1,
    kv_heads=1,
    head_dim_qk=8,
    head_dim_vo=8,
    page_size=16,
    dtype=DType.BFLOAT16,
    kv_dtype=DType.BFLOAT16,
)
"""A layer of attention, of which only the default answers about a model remain."""


class LaneSequences:
    """The sequences of lanes, each new request of a lane being another one, and how many tokens each has computed.

    `of_sequence` are the lanes of sequences. `before` returns the tokens before the case of a request that continues.
    """

    def __init__(self, before: Callable[[StateRow], int] = lambda _: _BEFORE) -> None:
        self._before = before
        self._sequence: dict[int, int] = {}
        self._computed: dict[int, tuple[int, int]] = {}
        self.of_sequence: dict[int, int] = {}

    def request(self, row: StateRow, mode: StateMode) -> Request:
        """Return the next request of a lane. After a verify it goes on behind its accepted tokens."""
        if row.lane not in self._sequence or not row.initial:
            self._sequence[row.lane] = len(self.of_sequence)
            self.of_sequence[self._sequence[row.lane]] = row.lane
            self._computed[row.lane] = (self._before(row), 0) if row.initial else (0, 0)
        first, last = self._computed[row.lane]
        computed = first + (min(row.accepted, last) if last > 0 else 0)
        verifies = mode is StateMode.VERIFY
        self._computed[row.lane] = (computed, row.tokens) if verifies else (computed + row.tokens, 0)
        return Request(self._sequence[row.lane], row.tokens, computed + row.tokens)
