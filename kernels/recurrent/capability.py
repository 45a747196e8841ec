"""The cases of recurrent state that a backend supports."""

from dataclasses import dataclass

from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import OPTIONS, PaddedRow, StateCase, StateMode, StateOp


@dataclass(frozen=True, kw_only=True)
class StateCapability:
    """The cases of one op that a backend supports.

    `dtypes` are those of inputs and outputs, each with the `state_dtypes` of the pool; a convolution's pool has the
    dtype of the inputs. `key_dims` and `value_dims` are those of a head, or any if empty; a convolution's channels are
    multiples of `channels`, and `widths` its numbers of taps. Value heads are multiples of heads if `grouped`.

    A server that verifies has 1 to `most_drafts` drafts; `least_accepted` is 0 if none of a verify's tokens need be
    accepted, and tokens of its requests differ in number if `ragged`; each has drafts + 1 of them in `whole_verifies`.
    `padded_rows` are the forms of padding in a
    decode or a verify, and `padded_prefills` whether a prefill has padding tokens. If it `reserves_dummy`, no request
    has slot 0 in any case. `replays`: decodes and verifies can be captured. `moves`: a step may write states to other
    slots. `gaps`: slots may lie apart.

    A pool is `swapped` if it stores [value_heads, value_dim, key_dim] in a slot, which a function then gets, or the
    inputs of a convolution one after another with all channels, of which it gets a transposed view.

    `normed`, `gated`, `biased`, `activated`, `narrow`, `no_skip`, `no_step_bias`, `no_softplus` and `columns` are the
    values of a case's field that are supported. A convolution that `converts` may keep its inputs in float32. Decays
    and beta are `given` as numbers, or computed by the kernel. `empty_rows`: requests without tokens may be in a step.
    """

    op: StateOp
    modes: tuple[StateMode, ...] = (StateMode.PREFILL, StateMode.DECODE)
    dtypes: tuple[DType, ...] = (DType.FLOAT32,)
    state_dtypes: tuple[DType, ...] = (DType.FLOAT32,)
    key_dims: tuple[int, ...] = ()
    value_dims: tuple[int, ...] = ()
    square: bool = False
    channels: int = 1
    widths: tuple[int, ...] = (4,)
    grouped: bool = True
    most_drafts: int = 0
    least_accepted: int = 1
    ragged: bool = True
    whole_verifies: bool = False
    padded_rows: tuple[PaddedRow, ...] = ()
    padded_prefills: bool = False
    reserves_dummy: bool = False
    replays: bool = False
    moves: bool = False
    gaps: bool = True
    strided: bool = True
    swapped: bool = False
    normed: tuple[bool, ...] = (False,)
    gated: tuple[bool, ...] = (False,)
    biased: tuple[bool, ...] = (False,)
    activated: tuple[bool, ...] = (False,)
    narrow: tuple[bool, ...] = (False,)
    no_skip: tuple[bool, ...] = (False,)
    no_step_bias: tuple[bool, ...] = (False,)
    no_softplus: tuple[bool, ...] = (False,)
    columns: tuple[bool, ...] = (False,)
    transposed: bool = False
    converts: bool = False
    given: bool = False
    empty_rows: bool = True
    most_tokens: int = 8192
    device: Device = Device.CPU
    patience: float = 1.0

    def why_not(self, case: AnyCase) -> str | None:
        """Return the first feature of a case that the backend does not support, as a noun phrase, or None."""
        if not isinstance(case, StateCase):
            return "cases of other ops"
        if case.op is not self.op:
            return case.op.value
        return self._why_not_shape(case) or self._why_not_options(case) or self._why_not_steps(case)

    def _why_not_shape(self, case: StateCase) -> str | None:
        shape = case.shape
        if case.dtype not in self.dtypes:
            return str(case.dtype)
        if case.op is StateOp.CONV:
            if shape.value_dim % self.channels:
                return f"{shape.value_dim} channels"
            if case.state_dtype is not case.dtype and not self.converts:
                return f"{case.dtype} inputs in {case.state_dtype}"
            return None if shape.width in self.widths else f"a width of {shape.width}"
        if case.state_dtype not in self.state_dtypes:
            return f"states of {case.state_dtype}"
        if self.key_dims and shape.key_dim not in self.key_dims:
            return f"a key dim of {shape.key_dim}"
        if self.value_dims and shape.value_dim not in self.value_dims:
            return f"a value dim of {shape.value_dim}"
        if self.square and shape.key_dim != shape.value_dim:
            return "key and value dims that differ"
        return None if self.grouped or shape.heads == shape.value_heads else "groups of value heads"

    def _why_not_options(self, case: StateCase) -> str | None:
        for name in OPTIONS:
            if getattr(case, name) not in getattr(self, name):
                return f"{name} {getattr(case, name)}"
        if case.move and not self.moves:
            return "states that move"
        if case.gap and not self.gaps:
            return "gaps between slots"
        if case.strided and not self.strided:
            return "strided inputs"
        if case.transposed and not self.transposed:
            return "transposed inputs"
        return f"{case.drafts} drafts" if case.drafts > self.most_drafts else None

    def _why_not_steps(self, case: StateCase) -> str | None:
        for step in case.steps:
            if step.mode not in self.modes:
                return f"steps of {step.mode}"
            if step.replayed and not self.replays:
                return "graphs"
            padded = self.padded_prefills if step.mode is StateMode.PREFILL else case.padded_row in self.padded_rows
            if step.padding and not padded:
                return "padding"
            tokens = {row.tokens for row in step.rows}
            if 0 in tokens and not self.empty_rows:
                return "requests without tokens"
            if max(tokens, default=0) > self.most_tokens:
                return f"more than {self.most_tokens} tokens"
            if step.mode is StateMode.VERIFY and len(tokens) > 1 and not self.ragged:
                return "ragged verifies"
            if step.mode is StateMode.VERIFY and self.whole_verifies and tokens - {case.drafts + 1}:
                return "verifies of some of the drafts"
            if any(row.accepted < self.least_accepted for row in step.rows):
                return "requests without an accepted token"
        return None
