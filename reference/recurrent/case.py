"""Cases of recurrent state. A step maps inputs and the states in slots of a pool to outputs and new states."""

from enum import StrEnum

import msgspec

from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.past import PastFailure


class StateOp(StrEnum):
    """The recurrences, token by token, of a state S [key_dim, value_dim] of each head.

    - GATED_DELTA: S = a S; S += k (b (v - S' k))'; o = S' q, with a = exp(g) of each head (Gated DeltaNet,
      arXiv:2412.06464, eq. 10).
    - KDA: the same with a decay for each channel of the key (Kimi Linear, arXiv:2510.26692, eq. 1).
    - DECAY: S = a S + k v'; o = S' q (lightning attention, arXiv:2405.17381; simple gated linear attention).
    - SSM: S = exp(dt A) S + B (dt x)'; o = S' C + D x, times silu(z) if there is a z (Mamba-2, arXiv:2405.21060).
    - SSM_OF_CHANNELS: the same for heads of one channel, with A for each of them and of the state (Mamba,
      arXiv:2312.00752).
    - CONV: o = act(bias + sum_j w_j x_(t - width + 1 + j)) for each channel; the state is the last inputs.
    """

    GATED_DELTA = "gated_delta"
    KDA = "kda"
    DECAY = "decay"
    SSM = "ssm"
    SSM_OF_CHANNELS = "ssm_of_channels"
    CONV = "conv"

    @property
    def is_delta(self) -> bool:
        """Whether a token replaces the value that the state holds for its key."""
        return self in (StateOp.GATED_DELTA, StateOp.KDA)

    @property
    def is_ssm(self) -> bool:
        """Whether steps and gates have the names of Mamba."""
        return self in (StateOp.SSM, StateOp.SSM_OF_CHANNELS)


class StateMode(StrEnum):
    """The purpose of a step.

    A prefill has any number of tokens of each request, and may continue its state; decodes among them are requests
    of one token. A verify has up to `drafts` + 1 tokens of each, and keeps the state after each of them.
    """

    PREFILL = "prefill"
    DECODE = "decode"
    VERIFY = "verify"


class StateRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One request of a step.

    `lane` is the number of its place in the pool, which rows of several steps share. Without `initial` state, which is
    possible in a prefill, the request is new, and its slots hold numbers of an earlier one. `accepted` is the
    number of the tokens of the last verify that were accepted.
    """

    lane: int
    tokens: int
    initial: bool = True
    accepted: int = 1


class StateStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One call.

    `padding` rows follow those of the requests in a decode or a verify, and padding tokens without a row in a prefill.
    A `replayed` step was captured with padding alone.
    """

    mode: StateMode
    rows: tuple[StateRow, ...]
    padding: int = 0
    replayed: bool = False

    @property
    def tokens(self) -> int:
        """The tokens of requests."""
        return sum(row.tokens for row in self.rows)


class PaddedRow(StrEnum):
    """The contents of padding rows: their slot, and whether they have tokens.

    EMPTY rows have the slot of DUMMY ones, and repeat the last start: they have no tokens.
    """

    NEGATIVE = "negative"
    DUMMY = "dummy"
    EMPTY = "empty"


class Stale(StrEnum):
    """The contents of slots that must not be read."""

    NUMBERS = "numbers"
    NAN = "nan"


class StateValues(StrEnum):
    """The family of the values of a case.

    LONG_MEMORY has decays near 1, FORGETFUL strong ones, and MIXED has heads of both. ALIKE has keys that resemble each
    other, and SMALL has small queries and keys.
    """

    NORMAL = "normal"
    LONG_MEMORY = "long_memory"
    FORGETFUL = "forgetful"
    ALIKE = "alike"
    SMALL = "small"
    MIXED = "mixed"


class StateShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Heads of queries and keys (groups of Mamba's B and C), and of values; a head's dims of the key and the value.

    Mamba's d_state is the key's dim, and its head dim the value's. Of a convolution, value_dim is the number of
    channels, and `width` the number of its taps.
    """

    heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    width: int = 4


class StateCase(
    AnyCase,
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="kind",
    tag="states",
):
    """Steps of one layer on one pool of states.

    A request has `drafts` + 1 slots, and as many again if states `move` to other slots with each step. `gap` elements
    lie between the states of two slots; slots are handed out in order, or `scattered`. With `normed` queries and keys
    the kernel divides them by their length. Inputs are parts of wider rows if `strided`, and have tokens innermost if
    `transposed`. `gated` outputs are multiplied by silu(z), and `biased` convolutions have a bias; an `activated` one
    applies silu. A convolution may keep its inputs in float32. Parameters of heads are `narrow` if A_log, or Mamba's D
    and dt_bias, have the dtype of inputs in place of float32. Mamba may have no D, no dt_bias, or no softplus. Lists of
    slots are `columns` of wider tables, or dense.
    """

    backend: str
    op: StateOp
    shape: StateShape
    steps: tuple[StateStep, ...]
    dtype: DType = DType.FLOAT32
    state_dtype: DType = DType.FLOAT32
    drafts: int = 0
    move: bool = False
    gap: int = 0
    scattered: bool = False
    padded_row: PaddedRow = PaddedRow.NEGATIVE
    stale: Stale = Stale.NUMBERS
    normed: bool = False
    strided: bool = False
    gated: bool = False
    biased: bool = False
    activated: bool = False
    transposed: bool = False
    narrow: bool = False
    no_skip: bool = False
    no_step_bias: bool = False
    no_softplus: bool = False
    columns: bool = False
    values: StateValues = StateValues.NORMAL
    seed: int = 0
    guard: Guard = Guard.RIGHT
    outputs: Outputs = Outputs.POISONED
    past: tuple[PastFailure, ...] = ()

    @property
    def modes(self) -> tuple[str, ...]:
        """The mode of each step, in order."""
        return tuple(step.mode.value for step in self.steps)

    @property
    def lanes(self) -> int:
        """The number of places in the pool."""
        return 1 + max((row.lane for step in self.steps for row in step.rows), default=0)

    @property
    def window(self) -> int:
        """The number of inputs that a convolution's slot holds."""
        return self.shape.width - 1 + self.drafts

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The shape of one slot: [value_heads, key_dim, value_dim], or [channels, inputs] of a convolution."""
        shape = self.shape
        if self.op is StateOp.CONV:
            return shape.value_dim, self.window
        return shape.value_heads, shape.key_dim, shape.value_dim

    @property
    def slots_of_a_lane(self) -> int:
        """The number of slots of a request between which a step chooses. A convolution's slot holds all drafts."""
        return 1 if self.op is StateOp.CONV else 1 + self.drafts

    def padded_tokens(self, step: StateStep) -> int:
        """Return the tokens of a step's padding."""
        if step.mode is StateMode.PREFILL:
            return step.padding
        return 0 if self.padded_row is PaddedRow.EMPTY else step.padding * self.width_of(step.mode)

    def width_of(self, mode: StateMode) -> int:
        """Return the tokens of a padding row of a decode or a verify."""
        return 1 + self.drafts if mode is StateMode.VERIFY else 1

    def validate(self) -> None:
        """Raise ImpossibleCase for the first rule that the case breaks."""
        from attnfuzz.reference.recurrent.validity import validate_states  # noqa: PLC0415 - it imports this module

        validate_states(self)


OPTIONS = ("normed", "gated", "biased", "activated", "narrow", "no_skip", "no_step_bias", "no_softplus", "columns")
"""Fields of cases of which a capability has the supported values, the plainest first."""
