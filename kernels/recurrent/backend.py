"""Backends of recurrent state, made from functions of one step.

    def decode(*, query, key, value, log_decay, beta, state, slots, out): ...

    MINE = StateBackend("mine", {StateMode.DECODE: decode}, StateCapability(op=StateOp.GATED_DELTA, given=True, ...))

The function of a step's mode is called with keyword arguments, those of the following that it has parameters for:

- of delta rules and of lightning attention: query and key [tokens, heads, key_dim], value [tokens, value_heads,
  value_dim]; log_decay [tokens, value_heads] or with key_dim (KDA), float32, and beta [tokens, value_heads], if the
  capability says `given`, otherwise the arguments of both: A_log [value_heads] float32, dt_bias, a and b.
  Lightning attention has `slope` [value_heads] float32 < 0 as the logarithm of its decay. `scale` multiplies queries;
  `normed` asks for queries and keys that are first divided by sqrt(|x|^2 + eps)
- of Mamba: x [tokens, value_heads, value_dim], dt [tokens, value_heads] before softplus, A [value_heads] or
  [value_heads, key_dim] < 0 in float32, B and C [tokens, heads, key_dim], D and dt_bias [value_heads], in float32 or
  narrow, or None; z [tokens, value_heads, value_dim] or None; `softplus` is False if dt is the step without one
- of a convolution: x [tokens, channels], weight [channels, width], bias [channels] or None, activated
- state [slots, value_heads, key_dim, value_dim], or [slots, channels, inputs] of a convolution: the pool, in which the
  function changes the slots of requests alone. Slots may be apart
- slots [rows] int32: the slot of each row, where its state is read and written. Padding rows have -1, or the dummy 0
- draft_slots [rows, drafts + 1] int32: in a verify, a request's state is that in column max(num_accepted - 1, 0), and
  the state after its token t goes to column t. A convolution has one slot, in which the inputs that precede a token
  begin at column max(num_accepted - 1, 0); it keeps the last width - 2 of them, followed by the new tokens
- target_slots, draft_targets: the slots to write to if states move, otherwise the same
- cu_seqlens [rows + 1] int32: the first token of each row; has_initial_state [rows] bool: False if the state is zero,
  and the slot must not be read; num_accepted [rows] int32
- out: [tokens, value_heads, value_dim], or [tokens, channels] of a convolution
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from attnfuzz.kernels.interface.backend import Bench, Op
from attnfuzz.kernels.recurrent.capability import StateCapability
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import ROUNDOFF, NoiseModel
from attnfuzz.reference.recurrent.case import StateCase, StateMode
from attnfuzz.reference.recurrent.noise import StateNoise

StateFunction = Callable[..., Any]


@dataclass(frozen=True)
class StateBackend:
    """Functions of the steps of a recurrence as a backend named `label`.

    `noises` are the models of correct steps by mode, `noise_model` that of the other modes. Raises ValueError for a
    mode of the capability without a function.
    """

    label: str
    functions: Mapping[StateMode, StateFunction]
    capability: StateCapability
    noise_model: StateNoise = field(default_factory=StateNoise)
    noises: Mapping[StateMode, StateNoise] = field(default_factory=dict)
    build: Callable[[Callable[[str], None]], None] | None = None
    why_missing: Callable[[], str | None] = lambda: None
    called_as_documented: bool = True

    def __post_init__(self) -> None:
        lacking = ", ".join(mode for mode in self.capability.modes if mode not in self.functions)
        if lacking:
            raise ValueError(
                f"{self.label} has no function for {lacking}: add one, or leave the mode out of its capability's modes"
            )

    @property
    def name(self) -> str:
        """The label."""
        return self.label

    @property
    def contract(self) -> Contract:
        """The promises besides right outputs and states: none."""
        return Contract()

    def missing(self) -> str | None:
        """Return the reason that this machine can't run it, or None."""
        return self.why_missing()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Compile the functions, if they need it."""
        if self.build is not None:
            self.build(progress)

    @cached_property
    def by_mode(self) -> Mapping[StateMode, Op]:
        """The op of each mode."""
        kernel = re.sub(r"\W", "_", self.label)
        return {
            mode: Op(f"{kernel}_{mode}", function, frozenset({"state", "out"}))
            for mode, function in self.functions.items()
        }

    @property
    def ops(self) -> Mapping[str, Op]:
        """The functions by name."""
        return {op.name: op for op in self.by_mode.values()}

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the model of attention, which nothing asks for."""
        del dtype
        return NoiseModel.unknown_kernel()

    def noise_of(self, mode: StateMode, state_dtype: DType) -> StateNoise:
        """Return the errors of a correct step of this mode. A verify may take each state from the slot of the last."""
        noise = self.noises.get(mode, self.noise_model)
        if mode is not StateMode.VERIFY:
            return noise
        return msgspec.structs.replace(noise, state=max(noise.state, ROUNDOFF[state_dtype.torch_dtype]))

    def open(self, case: StateCase, bench: Bench) -> Any:
        """Open a session on a case that `capability` covers."""
        from attnfuzz.kernels.recurrent.session import StateSession  # noqa: PLC0415 - it imports this module

        return StateSession(self, case, bench)


def parameters(function: StateFunction) -> frozenset[str]:
    """Return the names of the arguments that a function takes."""
    return frozenset(inspect.signature(function).parameters)
