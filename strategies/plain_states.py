"""Plain cases of recurrent state: two requests in one step, without padding, graphs or anything unusual in the pool."""

from itertools import product
from typing import TYPE_CHECKING

from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import OPTIONS, StateCase, StateMode, StateOp, StateRow, StateShape, StateStep
from attnfuzz.strategies.plain_cases import spread

if TYPE_CHECKING:
    from attnfuzz.kernels.recurrent.capability import StateCapability

_DIM = 16
_PROMPTS = (5, 3)


def plain_states(can: "StateCapability", backend: str) -> tuple[StateCase, ...]:
    """Return plain cases that `can` covers, over its modes, its dtypes and those of its pool."""
    combinations = product(can.dtypes, can.state_dtypes, can.modes)
    covered = [case for each in combinations if can.why_not(case := _case(can, backend, *each)) is None]
    return spread(tuple(dict.fromkeys(covered)))


def _case(can: "StateCapability", backend: str, dtype: DType, state_dtype: DType, mode: StateMode) -> StateCase:
    drafts = min(can.most_drafts, 2) if mode is StateMode.VERIFY else 0
    return StateCase(
        backend=backend,
        op=can.op,
        shape=_shape(can),
        steps=(_step(mode, drafts),),
        dtype=dtype,
        state_dtype=dtype if can.op is StateOp.CONV else state_dtype,
        drafts=drafts,
        **{name: getattr(can, name)[0] for name in OPTIONS},
    )


def _shape(can: "StateCapability") -> StateShape:
    if can.op is StateOp.CONV:
        return StateShape(heads=1, value_heads=1, key_dim=1, value_dim=2 * can.channels, width=can.widths[0])
    key_dim, value_dim = min(can.key_dims or (_DIM,)), min(can.value_dims or (_DIM,))
    if can.op is StateOp.SSM_OF_CHANNELS:
        return StateShape(heads=1, value_heads=value_dim, key_dim=key_dim, value_dim=1)
    return StateShape(heads=2, value_heads=2, key_dim=key_dim, value_dim=key_dim if can.square else value_dim)


def _step(mode: StateMode, drafts: int) -> StateStep:
    """Return a prefill of new requests, or a step of as many tokens of each as the server has drafts, and one more."""
    lengths = _PROMPTS if mode is StateMode.PREFILL else (1 + drafts,) * len(_PROMPTS)
    rows = tuple(
        StateRow(lane=lane, tokens=tokens, initial=mode is not StateMode.PREFILL) for lane, tokens in enumerate(lengths)
    )
    return StateStep(mode=mode, rows=rows)
