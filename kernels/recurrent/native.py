"""Backends on the native kernels of recurrent state."""

from collections.abc import Callable, Mapping
from typing import Final

from attnfuzz.kernels.native import build
from attnfuzz.kernels.native import recurrent_ops as ops
from attnfuzz.kernels.recurrent.backend import StateBackend, StateFunction
from attnfuzz.kernels.recurrent.capability import StateCapability
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import PaddedRow, StateMode, StateOp

_DTYPES: Final = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
_EITHER: Final = (False, True)


def _prepare(progress: Callable[[str], None]) -> None:
    build.load(progress)


def _backend(label: str, functions: Mapping[StateMode, StateFunction], capability: StateCapability) -> StateBackend:
    return StateBackend(label, functions, capability, build=_prepare, why_missing=build.missing)


def _by_mode(function: StateFunction, verify: StateFunction | None = None) -> dict[StateMode, StateFunction]:
    found = {StateMode.PREFILL: function, StateMode.DECODE: function}
    return found if verify is None else {**found, StateMode.VERIFY: verify}


def _can(op: StateOp, *, verifies: bool = True, **features: object) -> StateCapability:
    return StateCapability(
        op=op,
        modes=tuple(StateMode) if verifies else (StateMode.PREFILL, StateMode.DECODE),
        dtypes=_DTYPES,
        state_dtypes=_DTYPES,
        most_drafts=4 if verifies else 0,
        least_accepted=0,
        padded_rows=tuple(PaddedRow),
        padded_prefills=True,
        replays=True,
        moves=op is not StateOp.CONV,
        widths=(2, 3, 4, 5),
        **features,  # type: ignore[arg-type]
    )


NATIVE_STATES: Final = (
    _backend(
        "native:gated_delta_rule",
        _by_mode(ops.gated_delta_rule, ops.gated_delta_rule_verify),
        _can(StateOp.GATED_DELTA, normed=_EITHER),
    ),
    _backend(
        "native:given_delta_rule",
        _by_mode(ops.given_delta_rule),
        _can(StateOp.GATED_DELTA, verifies=False, normed=_EITHER, given=True),
    ),
    _backend(
        "native:kda", _by_mode(ops.gated_delta_rule, ops.gated_delta_rule_verify), _can(StateOp.KDA, normed=_EITHER)
    ),
    _backend("native:lightning_attention", _by_mode(ops.lightning_attention), _can(StateOp.DECAY, verifies=False)),
    _backend(
        "native:selective_scan",
        _by_mode(ops.selective_scan, ops.selective_scan_verify),
        _can(StateOp.SSM, gated=_EITHER),
    ),
    _backend(
        "native:selective_scan_of_channels",
        _by_mode(ops.selective_scan, ops.selective_scan_verify),
        _can(StateOp.SSM_OF_CHANNELS, gated=_EITHER),
    ),
    _backend(
        "native:causal_conv1d",
        _by_mode(ops.causal_conv1d, ops.causal_conv1d_verify),
        _can(StateOp.CONV, biased=_EITHER, activated=_EITHER),
    ),
)
"""Kernels that compute token by token in fp32."""
