"""Cases of recurrent state, as servers make them: valid by construction, within a backend's capability."""

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.dtypes import DType
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
from attnfuzz.reference.recurrent.features import accepted_class, counted, prompt_length
from attnfuzz.strategies.choices import Choice, Draws, integer, on, yes
from attnfuzz.strategies.lean import NO_LEAN, Lean
from attnfuzz.strategies.state_shapes import PROMPTS, draw_shape, longest_prompt
from attnfuzz.strategies.state_space import STATE_SPACE

if TYPE_CHECKING:
    from attnfuzz.kernels.recurrent.capability import StateCapability


def state_cases(capability: Any, backend: str, lean: Lean = NO_LEAN) -> SearchStrategy[StateCase]:
    """Return a strategy of cases that the capability covers, of which those that show `lean` are drawn more often."""
    return _cases(capability, backend, lean)


@st.composite
def _cases(draw: DrawFn, can: "StateCapability", backend: str, lean: Lean) -> StateCase:
    draws = Draws(draw, lean)
    shape = draw_shape(draws, can)
    dtype = draws.of("input dtype", can.dtypes)
    convolves = can.op is StateOp.CONV
    drafts = _draw_drafts(draws, can)
    rows: tuple[PaddedRow, ...] = can.padded_rows or (PaddedRow.NEGATIVE,)
    padded_row = draws.of("padded", rows, _of_rows)
    steps = _Life(draws, can, drafts, padded_row, shape).steps()
    values = draws.of("state values", (*(StateValues.NORMAL,) * 3, *tuple(StateValues)[1:]))
    strided = can.strided and draws.flag("strided", 1, 1)
    return StateCase(
        backend=backend,
        op=can.op,
        shape=shape,
        steps=steps,
        dtype=dtype,
        state_dtype=_draw_state_dtype(draws, can, dtype),
        drafts=drafts,
        move=can.moves and draws.flag("moved", 2, 1),
        gap=draws.of("gap", (0, 0, 16, 64) if can.gaps else (0,), yes),
        scattered=draws.flag("scattered", 1, 1),
        padded_row=padded_row,
        stale=draws.of("stale", (Stale.NUMBERS, Stale.NAN)),
        normed=draws.of("normed", can.normed, yes),
        strided=strided,
        transposed=can.transposed and not strided and draws.flag("transposed", 1, 1),
        narrow=draws.of("narrow", can.narrow, yes),
        no_skip=draws.of("no skip", _rarely(can.no_skip), yes),
        no_step_bias=draws.of("no step bias", _rarely(can.no_step_bias), yes),
        no_softplus=draws.of("no softplus", _rarely(can.no_softplus), yes),
        columns=draws.of("columns", _rarely(can.columns), yes),
        gated=draws.of("gated", can.gated, yes),
        biased=draws.of("biased", can.biased, yes),
        activated=draws.of("activated", can.activated, yes),
        values=StateValues.NORMAL if convolves else values,
        seed=draws.integer(0, 1 << 31),
        guard=draws.of("state guard", (Guard.RIGHT, Guard.RIGHT, Guard.LEFT)),
        outputs=draws.of("state outputs", (Outputs.POISONED, Outputs.POISONED, Outputs.STALE)),
    )


def _draw_state_dtype(draws: Draws, can: "StateCapability", dtype: DType) -> DType:
    if can.op is not StateOp.CONV:
        return draws.of("state dtype", can.state_dtypes)
    return draws.of("state dtype", (dtype, dtype, DType.FLOAT32)) if can.converts else dtype


def _rarely(options: tuple[bool, ...]) -> tuple[bool, ...]:
    """Return the options with the first one in most of the draws."""
    return (*options[:1] * 3, *options)


def _draw_drafts(draws: Draws, can: "StateCapability") -> int:
    """Draw the number of drafts, 0 for a server without drafts."""
    if StateMode.VERIFY not in can.modes or not can.most_drafts:
        return 0
    counts = tuple(range(1, can.most_drafts + 1))
    without = (0,) * len(counts) if set(can.modes) != {StateMode.VERIFY} else ()
    return draws.draw(_counts_of_drafts(without + counts).under(draws.lean))


@cache
def _counts_of_drafts(counts: tuple[int, ...]) -> Choice[int]:
    """Return a choice of numbers of drafts, each of which shows itself and the mode of its steps."""
    return Choice(counts, _of_drafts)


_OF_VERIFIES = ("state mode=verify", "accepted=none", "accepted=one", "accepted=all", "ragged verify=yes")


def _of_drafts(drafts: int) -> tuple[str, ...]:
    later = (*_OF_VERIFIES, *(("accepted=some",) if drafts > 1 else ())) if drafts else ("state mode=decode",)
    return f"state drafts={counted(drafts)}", *later


@cache
def _modes(modes: tuple[StateMode, ...], can: "StateCapability") -> Choice[StateMode]:
    """Return a choice of modes, each of which shows itself and all features that are possible with it."""
    return Choice(modes, lambda mode: STATE_SPACE.beside(f"state mode={mode}", can))


_ALONE, _SEVERAL = ("state steps=one", "state steps=several")


def _of_steps(count: int) -> tuple[str, ...]:
    return (_ALONE,) if count == 1 else (_SEVERAL, "begin=handed on")


_COUNTS = Choice((1, 1, 1, 2, 2, 3, 4), _of_steps)


def _of_lanes(lanes: int) -> tuple[str, ...]:
    several = ("mixed=yes", "ragged verify=yes") if lanes > 1 else ()
    return f"requests={counted(lanes)}", *several


_LANES = Choice((1, 1, 1, 2, 2, 2, 3, 3, 4, 4, 6, 6, 9, 19), _of_lanes)


def _of_rows(padded_row: PaddedRow) -> str:
    return f"{padded_row} rows"


def _beginning(initial: object) -> str:
    return "continued" if initial else "new"


@cache
def _accepted(least: int, most: int, drafts: int) -> Choice[int]:
    return Choice(tuple(range(least, most + 1)), on("accepted", partial(accepted_class, drafts=drafts)))


class _Life:
    """Draws the steps of a server: requests begin, go on, end, and hand their slots on."""

    def __init__(
        self, draws: Draws, can: "StateCapability", drafts: int, padded_row: PaddedRow, shape: StateShape
    ) -> None:
        self._draws, self._can, self._drafts, self._padded_row = draws, can, drafts, padded_row
        self._longest = longest_prompt(can, shape)
        self._lanes = draws.draw(_LANES.under(draws.lean))
        self._verified: dict[int, int] = {}

    def steps(self) -> tuple[StateStep, ...]:
        """Draw one to four steps. Their first one may be of requests whose earlier steps are not in the case."""
        count = self._draws.draw(_COUNTS.under(self._draws.lean))
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
        mode = self._draws.draw(_modes(tuple(modes), self._can).under(self._draws.lean))
        lanes = self._draws.draw(_subset(self._lanes))
        step = self._prefill(lanes) if mode is StateMode.PREFILL else self._decode(mode, lanes)
        for row in step.rows:
            if row.tokens:
                self._verified[row.lane] = row.tokens if mode is StateMode.VERIFY else 1
        return step

    def _prefill(self, lanes: tuple[int, ...]) -> StateStep:
        draws, rows, left = self._draws, [], 2 * self._longest
        for lane in lanes:
            may_continue = self._verified.get(lane, 1) <= 1
            initial = may_continue and draws.of("begin", (False, True), _beginning)
            if initial and len(lanes) > 1 and draws.flag("mixed", 2, 1):
                tokens = 1
            else:
                tokens = min(draws.of("prompt", PROMPTS, prompt_length), self._longest, max(left, 1))
            if initial and self._can.empty_rows and draws.of("prompt", (1,) * 7 + (0,), prompt_length) == 0:
                tokens = 0
            left -= tokens
            rows.append(StateRow(lane=lane, tokens=tokens, initial=initial))
        padded = self._can.padded_prefills and draws.of("padded", ("none", "none", "tokens")) != "none"
        padding = draws.integer(1, 5) if padded else 0
        return StateStep(mode=StateMode.PREFILL, rows=tuple(rows), padding=padding)

    def _decode(self, mode: StateMode, lanes: tuple[int, ...]) -> StateStep:
        draws, can, rows = self._draws, self._can, []
        verifies = mode is StateMode.VERIFY
        width = 1 + self._drafts if verifies else 1
        ragged = verifies and can.ragged and draws.flag("ragged verify", 1, 1)
        fewer = verifies and not can.whole_verifies and draws.odds(2, 1)
        uniform = draws.integer(1, width) if fewer else width
        for lane in lanes:
            tokens = draws.integer(0 if can.empty_rows else 1, width) if ragged else uniform
            accepted = 1
            if verifies:
                most = max(self._verified.get(lane, width), 1)
                accepted = draws.draw(_accepted(can.least_accepted, most, self._drafts).under(draws.lean))
            rows.append(StateRow(lane=lane, tokens=tokens, accepted=accepted))
        padding = 0
        if can.padded_rows and draws.of("padded", ("none", _of_rows(self._padded_row))) != "none":
            padding = draws.integer(1, 3)
            if draws.of("requests", (len(rows),) * 7 + (0,), counted) == 0:
                rows = []
        replayed = can.replays and self._padded_row is not PaddedRow.EMPTY and draws.flag("replayed", 2, 1)
        return StateStep(mode=mode, rows=tuple(rows), padding=padding, replayed=replayed)


@cache
def _subset(lanes: int) -> SearchStrategy[tuple[int, ...]]:
    """Return a strategy of distinct lanes in any order, all of them in half of the draws."""
    everything = st.permutations(range(lanes)).map(tuple)
    some = st.lists(integer(0, lanes - 1), min_size=1, max_size=lanes, unique=True).map(tuple)
    return everything | some
