"""The result of a step of a recurrence."""

from dataclasses import dataclass

import torch

from attnfuzz.kernels.interface.backend import JudgedOnHost
from attnfuzz.reference.recurrent.case import StateCase, StateMode
from attnfuzz.reference.recurrent.noise import StateNoise
from attnfuzz.reference.recurrent.values import CaseValues, StepInputs


@dataclass(frozen=True)
class TouchedRow:
    """Request `number` of a step: its tokens, the slot that it reads (None: none), and those that it writes.

    A verify writes a slot per token, anything else the last state alone. `committed` are (slot, tokens) of slots to
    which the state after that many tokens is copied.
    """

    number: int
    tokens: slice
    read: int | None
    written: tuple[int, ...]
    accepted: int
    committed: tuple[tuple[int, int], ...] = ()

    @property
    def touched(self) -> tuple[int, ...]:
        """All slots that are written."""
        return *self.written, *(slot for slot, _ in self.committed)


@dataclass(frozen=True)
class StateResult(JudgedOnHost):
    """The outputs [tokens, value_heads, value_dim] of a step, or [tokens, channels], and its pool before and after.

    The slots in `free` may have any contents afterwards. `noise` describes a correct kernel, which was `given` decays
    and beta, or computed them. `returned` describes a value that a function returned, which is ignored.
    """

    case: StateCase
    mode: StateMode
    inputs: StepInputs
    values: CaseValues
    out: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor
    rows: tuple[TouchedRow, ...]
    free: frozenset[int]
    noise: StateNoise
    given: bool
    returned: str = ""
