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

    The backend is one of the classes in `classes`, in `module` if a release has it, and otherwise in `HYBRID`. The
    layer runs the op of `kernels`, native ones; the layer's other op returns its inputs. Releases before `since` call
    other kernels.
    """

    module: str
    classes: tuple[str, ...]
    kernels: StateBackend
    since: Version = _ALWAYS

    @property
    def decays_by_channel(self) -> bool:
        """Whether it is Kimi Linear's, with a decay for each channel of a key."""
        return self.kernels.capability.op is StateOp.KDA

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
            most_tokens=1024,
        )


STATE_KINDS: Final = {
    "gdn": LinearKind(f"{_LINEAR}gdn_backend", ("GDNAttnBackend",), _NATIVE[StateOp.GATED_DELTA]),
    "gdn_conv": LinearKind(f"{_LINEAR}gdn_backend", ("GDNAttnBackend",), _NATIVE[StateOp.CONV]),
    # Its kernel for prefills gets beta before the sigmoid from then on (layers/attention/linear/kernels/kda_triton.py).
    "kda": LinearKind(f"{_LINEAR}kda_backend", ("KDAAttnBackend",), _NATIVE[StateOp.KDA], Version("0.5.20")),
}
"""The layers of Qwen3-Next and Qwen3.5, with its causal convolution, and of Kimi Linear."""
