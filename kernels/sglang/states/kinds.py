"""The recurrent layers of SGLang that this project runs, and the cases that each supports."""

from dataclasses import dataclass, replace
from typing import Final

from packaging.version import Version

from attnfuzz.kernels.recurrent.backend import StateBackend
from attnfuzz.kernels.recurrent.capability import StateCapability
from attnfuzz.kernels.recurrent.native import NATIVE_STATES
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import PaddedRow, StateMode, StateOp

_NATIVE: Final = {backend.capability.op: backend for backend in NATIVE_STATES if not backend.capability.given}

HYBRID: Final = "sglang.srt.layers.attention.hybrid_linear_attn_backend"
"""The module of the backend of hybrid models, and in early releases of all that it chooses from."""

_LINEAR: Final = "sglang.srt.layers.attention.linear."

_ALWAYS: Final = Version("0")

CHANNELS: Final = 4
"""The channels of a convolution are multiples of it: those of queries, keys and values."""


@dataclass(frozen=True)
class LinearKind:
    """A part of a recurrent layer.

    The backend is the class `class_name`, in `module` if a release has it, and otherwise in `HYBRID`. The
    layer has a convolution and a `recurrence`. It runs the op of `kernels`, native ones, and its other op returns its
    inputs. Releases before `since` call other kernels, and those before `padded_since` pad no batch in front of it
    outside of graphs.
    """

    module: str
    class_name: str
    recurrence: StateOp
    kernels: StateBackend
    since: Version = _ALWAYS
    padded_since: Version = _ALWAYS

    @property
    def decays_by_channel(self) -> bool:
        """Whether the layer is Kimi Linear's, with a decay for each channel of a key."""
        return self.recurrence is StateOp.KDA

    @property
    def mixes(self) -> bool:
        """Whether the layer is Mamba-2's."""
        return self.recurrence is StateOp.SSM

    @property
    def convolves(self) -> bool:
        """Whether it is the layer's convolution."""
        return self.kernels.capability.op is StateOp.CONV

    @property
    def capability(self) -> StateCapability:
        """The cases of a server: slot 0 is the dummy, all drafts are verified, and one of them is always accepted."""
        return replace(
            self.kernels.capability,
            modes=tuple(StateMode),
            # The dtypes of served models.
            dtypes=(DType.BFLOAT16, DType.FLOAT16),
            channels=CHANNELS,
            most_drafts=4,
            least_accepted=1,
            ragged=False,
            whole_verifies=True,
            # A server schedules no request without a token.
            empty_rows=False,
            padded_rows=(PaddedRow.DUMMY,),
            reserves_dummy=True,
            replays=True,
            moves=False,
            gaps=False,
            strided=False,
            # By the kernels of these layers (0.5.23: layers/attention/linear/kernels/gdn_triton.py:174).
            grouped=not self.decays_by_channel,
            normed=(True,) if self.kernels.capability.op.is_delta else (False,),
            # Of the mixer's kernels, and of KDA's convolution (layers/attention/linear/kda_backend.py:960).
            gated=(False,),
            activated=(True,) if self.convolves and self.decays_by_channel else self.kernels.capability.activated,
            most_tokens=1024,
        )


# KDA's kernel for prefills gets beta before the sigmoid from then on (layers/attention/linear/kernels/kda_triton.py).
_RAW_BETA: Final = Version("0.5.20")


# Nemotron-H runs with --enable-dp-attention from then on (https://github.com/sgl-project/sglang/pull/24955).
_PADDED_MIXER: Final = Version("0.5.14")


def _kinds(
    name: str,
    module: str,
    class_name: str,
    recurrence: StateOp,
    *,
    since: Version = _ALWAYS,
    padded_since: Version = _ALWAYS,
) -> dict[str, LinearKind]:
    """Return a layer's recurrence and its convolution."""
    return {
        each: LinearKind(module, class_name, recurrence, _NATIVE[op], since, padded_since)
        for each, op in ((name, recurrence), (f"{name}_conv", StateOp.CONV))
    }


STATE_KINDS: Final = {
    **_kinds("gdn", f"{_LINEAR}gdn_backend", "GDNAttnBackend", StateOp.GATED_DELTA),
    **_kinds("kda", f"{_LINEAR}kda_backend", "KDAAttnBackend", StateOp.KDA, since=_RAW_BETA),
    **_kinds("mamba2", HYBRID, "Mamba2AttnBackend", StateOp.SSM, padded_since=_PADDED_MIXER),
}
"""The layers of Qwen3-Next and Qwen3.5, of Kimi Linear, and of Nemotron-H; `conv` is the causal convolution of each."""
