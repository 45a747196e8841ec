"""Cases of recurrent state, as servers make them: valid by construction, within a backend's capability."""

from functools import cache
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.recurrent.case import (
    PaddedRow,
    Stale,
    StateCase,
    StateMode,
    StateOp,
    StateRow,
    StateShape,
    StateStep,
    StateValues,
)
from attnfuzz.strategies.choices import choice, integer, odds

if TYPE_CHECKING:
    from attnfuzz.kernels.recurrent.capability import StateCapability

_PROMPTS = (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 62, 63, 64, 65, 66, 100, 127, 128, 129, 130, 193, 256, 257)
_KEY_DIMS = (8, 16, 32, 64, 24, 40)
_VALUE_DIMS = (8, 16, 32, 64, 12, 33)
_HEADS = ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (3, 2), (4, 1), (2, 3))
_CHANNELS = (1, 2, 3, 5, 8, 12, 17, 40)
_STATE_BUDGET = 1 << 16
"""Elements of a state times tokens of a prompt, relative to which prompts get shorter."""


def state_cases(capability: Any, backend: str) -> SearchStrategy[StateCase]:
    """Return a strategy of cases that the capability covers."""
    return _cases(capability, backend)


@st.composite
def _cases(draw: DrawFn, can: "StateCapability", backend: str) -> StateCase:
    shape = _draw_shape(draw, can)
    dtype = draw(choice(can.dtypes))
    convolves = can.op is StateOp.CONV
    verifies = StateMode.VERIFY in can.modes and draw(odds(1, 2))
    drafts = draw(integer(1, can.most_drafts)) if verifies and can.most_drafts else 0
    if StateMode.DECODE not in can.modes and StateMode.VERIFY in can.modes and can.most_drafts:
        drafts = drafts or 1
    rows: tuple[PaddedRow, ...] = can.padded_rows or (PaddedRow.NEGATIVE,)
    padded_row = draw(choice(rows))
    steps = _Life(draw, can, drafts, padded_row, shape).steps()
    values = draw(choice((*(StateValues.NORMAL,) * 3, *tuple(StateValues)[1:])))
    return StateCase(
        backend=backend,
        op=can.op,
        shape=shape,
        steps=steps,
        dtype=dtype,
        state_dtype=dtype if convolves else draw(choice(can.state_dtypes)),
        drafts=drafts,
        move=can.moves and draw(odds(2, 1)),
        gap=draw(choice((0, 0, 16, 64))),
        scattered=draw(odds(1, 1)),
        padded_row=padded_row,
        stale=draw(choice((Stale.NUMBERS, Stale.NAN))),
        normed=draw(choice(can.normed)),
        strided=can.strided and draw(odds(1, 1)),
        gated=draw(choice(can.gated)),
        biased=draw(choice(can.biased)),
        activated=draw(choice(can.activated)),
        values=StateValues.NORMAL if convolves else values,
        seed=draw(integer(0, 1 << 31)),
        guard=draw(choice((Guard.RIGHT, Guard.RIGHT, Guard.LEFT))),
        outputs=draw(choice((Outputs.POISONED, Outputs.POISONED, Outputs.STALE))),
    )


def _draw_shape(draw: DrawFn, can: "StateCapability") -> StateShape:
    if can.op is StateOp.CONV:
        channels = can.channels * draw(choice(_CHANNELS))
        return StateShape(heads=1, value_heads=1, key_dim=1, value_dim=channels, width=draw(choice(can.widths)))
    key_dim = draw(choice(can.key_dims or _KEY_DIMS))
    if can.op is StateOp.SSM_OF_CHANNELS:
        heads = draw(choice(can.value_dims or _VALUE_DIMS))
        return StateShape(heads=1, value_heads=heads, key_dim=key_dim, value_dim=1)
    value_dim = key_dim if can.square else draw(choice(can.value_dims or _VALUE_DIMS))
    heads, group = draw(choice(_HEADS))
    return StateShape(
        heads=heads, value_heads=heads * group if can.grouped else heads, key_dim=key_dim, value_dim=value_dim
    )


class _Life:
    """Draws the steps of a server: requests begin, go on, end, and hand their slots on."""

    def __init__(
        self, draw: DrawFn, can: "StateCapability", drafts: int, padded_row: PaddedRow, shape: StateShape
    ) -> None:
        self._draw, self._can, self._drafts, self._padded_row = draw, can, drafts, padded_row
        size = shape.value_heads * shape.key_dim * shape.value_dim
        self._longest = min(can.most_tokens, max(8, 64 * _STATE_BUDGET // max(size, 1)))
        self._lanes = draw(choice((1, 1, 2, 2, 3, 4, 6)))
        self._verified: dict[int, int] = {}

    def steps(self) -> tuple[StateStep, ...]:
        """Draw one to four steps. Their first one may be of requests whose earlier steps are not in the case."""
        count = self._draw(choice((1, 1, 1, 2, 2, 3, 4)))
        return tuple(self._step() for _ in range(count))

    @property
    def _later(self) -> StateMode | None:
        """The mode of steps after the prompt."""
        later = StateMode.VERIFY if self._drafts else StateMode.DECODE
        return later if later in self._can.modes else None

    def _step(self) -> StateStep:
        modes: list[StateMode] = []
        if StateMode.PREFILL in self._can.modes:
            modes.append(StateMode.PREFILL)
        if self._later is not None:
            modes.append(self._later)
        mode = self._draw(choice(tuple(modes)))
        lanes = self._draw(_subset(self._lanes))
        step = self._prefill(lanes) if mode is StateMode.PREFILL else self._decode(mode, lanes)
        for row in step.rows:
            if row.tokens:
                self._verified[row.lane] = row.tokens if mode is StateMode.VERIFY else 1
        return step

    def _prefill(self, lanes: tuple[int, ...]) -> StateStep:
        draw, rows, left = self._draw, [], 2 * self._longest
        for lane in lanes:
            may_continue = self._verified.get(lane, 1) <= 1
            initial = may_continue and draw(odds(1, 1))
            tokens = 1 if initial and draw(odds(2, 1)) else min(draw(choice(_PROMPTS)), self._longest, max(left, 1))
            if initial and self._can.empty_rows and draw(odds(7, 1)):
                tokens = 0
            left -= tokens
            rows.append(StateRow(lane=lane, tokens=tokens, initial=initial))
        padding = draw(integer(1, 5)) if self._can.padded_prefills and draw(odds(2, 1)) else 0
        return StateStep(mode=StateMode.PREFILL, rows=tuple(rows), padding=padding)

    def _decode(self, mode: StateMode, lanes: tuple[int, ...]) -> StateStep:
        draw, can, rows = self._draw, self._can, []
        width = 1 + self._drafts if mode is StateMode.VERIFY else 1
        ragged = mode is StateMode.VERIFY and can.ragged and draw(odds(1, 1))
        uniform = draw(integer(1, width)) if mode is StateMode.VERIFY and draw(odds(2, 1)) else width
        for lane in lanes:
            tokens = draw(integer(0 if can.empty_rows else 1, width)) if ragged else uniform
            accepted = 1
            if mode is StateMode.VERIFY:
                accepted = draw(integer(can.least_accepted, max(self._verified.get(lane, width), 1)))
            rows.append(StateRow(lane=lane, tokens=tokens, accepted=accepted))
        padding = 0
        if bool(can.padded_rows) and draw(odds(1, 1)):
            padding = draw(integer(1, 3))
            if draw(odds(7, 1)):
                rows = []
        replayed = can.replays and self._padded_row is not PaddedRow.EMPTY and draw(odds(2, 1))
        return StateStep(mode=mode, rows=tuple(rows), padding=padding, replayed=replayed)


@cache
def _subset(lanes: int) -> SearchStrategy[tuple[int, ...]]:
    """Return a strategy of distinct lanes in any order, all of them in half of the draws."""
    everything = st.permutations(range(lanes)).map(tuple)
    some = st.lists(integer(0, lanes - 1), min_size=1, max_size=lanes, unique=True).map(tuple)
    return everything | some
