"""The recurrent layers of vLLM that this project runs, and the cases that each supports."""

from dataclasses import dataclass, replace
from typing import Final

from attnfuzz.kernels.recurrent.backend import StateBackend
from attnfuzz.kernels.recurrent.capability import StateCapability
from attnfuzz.kernels.recurrent.native import NATIVE_STATES
from attnfuzz.reference.recurrent.case import PaddedRow, StateMode, StateOp

_NATIVE: Final = {backend.capability.op: backend for backend in NATIVE_STATES if not backend.capability.given}
_BACKENDS: Final = "vllm.v1.attention.backends"


@dataclass(frozen=True)
class StateKind:
    """A part of a recurrent layer.

    `module` has vLLM's backend, whose classes begin with `classes`. The layer runs the op of `kernels`, native ones, on
    a pool without the other op's states.
    """

    module: str
    classes: str
    kernels: StateBackend

    @property
    def capability(self) -> StateCapability:
        """The cases of a server: the null block 0 pads, and one token of a verify is always accepted.

        States move on a server with a prefix cache, those of a convolution excepted.
        """
        return replace(
            self.kernels.capability,
            modes=tuple(StateMode),
            most_drafts=4,
            least_accepted=1,
            padded_rows=(PaddedRow.DUMMY,),
            reserves_dummy=True,
            replays=True,
            # Of both layers' kernels (layers/mamba/gdn/qwen_gdn_linear_attn.py:1776).
            normed=(True,) if self.kernels.capability.op is StateOp.GATED_DELTA else (False,),
            most_tokens=1024,
        )


STATE_KINDS: Final = {
    "gdn": StateKind(f"{_BACKENDS}.gdn_attn", "GDNAttention", _NATIVE[StateOp.GATED_DELTA]),
    "gdn_conv": StateKind(f"{_BACKENDS}.gdn_attn", "GDNAttention", _NATIVE[StateOp.CONV]),
    "mamba2": StateKind(f"{_BACKENDS}.mamba2_attn", "Mamba2Attention", _NATIVE[StateOp.SSM]),
    "mamba2_conv": StateKind(f"{_BACKENDS}.mamba2_attn", "Mamba2Attention", _NATIVE[StateOp.CONV]),
}
"""The layers of Qwen3-Next and Qwen3.5, and of Mamba-2; `conv` is the causal convolution of each."""
