"""FlashInfer's kernels of recurrent state on Hopper: Mamba's update, and gated delta rules in all modes.

Its convolutions and its scan of chunks are for Blackwell alone (mamba/causal_conv1d.py, `_supported`). Files are those
of FlashInfer 0.7.4. The delta rules are compiled by CuTe when they are called, so they need nvidia-cutlass-dsl.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from attnfuzz.kernels.cuda import guards, nvcc, visible
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import modules
from attnfuzz.kernels.gpu.alignment import aligned
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.flashinfer_op import call
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.recurrent.backend import StateBackend
from attnfuzz.kernels.recurrent.capability import StateCapability
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import PaddedRow, StateMode, StateOp
from attnfuzz.reference.recurrent.noise import StateNoise

_ARCHS: Final = frozenset({Arch.HOPPER})
_cute = partial(aligned, nbytes=32)
"""Kernels in CuTe refuse parameters and indices at other addresses (`assumed_align`: 16 or 32 in gdn_kernels)."""


@dataclass(frozen=True)
class FlashInferStates(StateBackend):
    """Functions of FlashInfer, which `needs` packages and modules, for GPUs of `archs`."""

    needed: tuple[Module, ...] = ()
    archs: frozenset[Arch] = _ARCHS
    needs: tuple[str, ...] = ("flashinfer",)

    @property
    def libraries(self) -> tuple[tuple[Path, ...], ...]:
        """Those of this project's libraries that its cases need, each as its source files."""
        return ((guards.SOURCE,),)

    def modules(self) -> tuple[Module, ...]:
        """List the modules that its functions need."""
        return self.needed

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Compile the modules."""
        nvcc.build((guards.SOURCE,), progress=progress)
        modules.build(self.needed, progress)


def selective_state_update(
    *,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    z: torch.Tensor | None,
    state: torch.Tensor,
    draft_slots: torch.Tensor,
    draft_targets: torch.Tensor,
    cu_seqlens: torch.Tensor,
    num_accepted: torch.Tensor,
    out: torch.Tensor,
    verifies: bool = False,
) -> None:
    """Update states as vLLM's MambaMixer2 does: the numbers of a head are expanded to all of its elements.

    A decode has one column of slots.
    """
    if not len(x):
        return
    _, heads, dim, elements = state.shape
    if len(state) < len(draft_slots):
        raise Unsupported("more requests than slots")
    if heads // B.shape[1] not in _GROUPS:
        raise Unsupported(f"{heads // B.shape[1]} heads of a group")
    verified = {
        "state_batch_indices": draft_slots,
        "dst_state_batch_indices": draft_targets,
        "cu_seqlens": cu_seqlens,
        "num_accepted_tokens": num_accepted,
        "cache_steps": draft_slots.shape[1],
    }
    decoded = {"state_batch_indices": draft_slots[:, 0], "dst_state_batch_indices": draft_targets[:, 0]}
    call(
        "flashinfer.mamba.selective_state_update",
        "selective_state_update",
        state=state,
        x=x,
        dt=dt[:, :, None].expand(-1, -1, dim),
        A=A[:, None, None].expand(-1, dim, elements),
        B=B,
        C=C,
        D=D[:, None].expand(-1, dim),
        z=z,
        dt_bias=dt_bias[:, None].expand(-1, dim),
        dt_softplus=True,
        out=out,
        **(verified if verifies else decoded),
    )


_GROUPS: Final = (1, 2, 4, 8, 16, 32, 64)
"""The numbers of heads of a group (invoke_selective_state_update_mtp.cuh, dispatchRatio)."""

_DIM, _ELEMENTS, _DRAFTS = 64, 128, 3
"""The head dim and the size of states of Mamba2 layers, and the drafts of a verify, for which modules are compiled."""


def _spec(state: DType, tokens: int) -> Any:
    from flashinfer.jit.mamba import gen_selective_state_update_sm90_module  # noqa: PLC0415 - only where it is compiled

    narrow, index = torch.bfloat16, torch.int32
    return gen_selective_state_update_sm90_module(
        state_dtype=state.torch_dtype,
        input_dtype=narrow,
        weight_dtype=narrow,
        matrixA_dtype=torch.float32,
        stateIndex_dtype=index,
        state_scale_dtype=None,
        dim=_DIM,
        dstate=_ELEMENTS,
        ntokens_mtp=tokens,
        cu_seqlens_dtype=index,
        # A decode, which has no counts, is compiled for int64 (mamba/selective_state_update.py).
        num_accepted_tokens_dtype=index if tokens > 1 else torch.int64,
    )


_STATES: Final = (DType.FLOAT32, DType.BFLOAT16)
_HOPPER: Final[dict[str, Any]] = {
    "dtypes": (DType.BFLOAT16,),
    "padded_rows": (PaddedRow.NEGATIVE,),
    "moves": True,
    "swapped": True,
    "device": Device.CUDA,
}
# Softplus is __logf(1 + __expf(x)), and decays are __expf of a product (mamba/common.cuh): 2 units in the last place,
# and 2^-22 of the argument (CUDA C++ Programming Guide, intrinsic functions).
MAMBA: Final = FlashInferStates(
    "flashinfer:selective_state_update",
    {StateMode.DECODE: selective_state_update, StateMode.VERIFY: partial(selective_state_update, verifies=True)},
    StateCapability(
        op=StateOp.SSM,
        modes=(StateMode.DECODE, StateMode.VERIFY),
        state_dtypes=_STATES,
        key_dims=(_ELEMENTS,),
        value_dims=(_DIM,),
        most_drafts=_DRAFTS,
        narrow=(True,),
        gated=(False, True),
        **_HOPPER,
    ),
    noise_model=StateNoise(step=2.0**-21, gate=2.0**-21, exponential=2.0**-20, activation=2.0**-20),
    why_missing=partial(visible.missing, _ARCHS, ("flashinfer",)),
    needed=tuple(
        Module(f"selective state update, states in {state}, {tokens} tokens", partial(_spec, state, tokens))
        for state in _STATES
        for tokens in range(1, _DRAFTS + 2)
    ),
)


def delta_decode(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    target_slots: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    normed: bool,
) -> None:
    """Decode with states in a pool."""
    if not len(query):
        return
    call(
        "flashinfer.gdn_decode",
        "gated_delta_rule_decode_pretranspose",
        q=query[:, None],
        k=key[:, None],
        v=value[:, None],
        state=None,
        A_log=_cute(A_log),
        a=a[:, None],
        dt_bias=_cute(dt_bias),
        b=b[:, None],
        scale=scale,
        output=out[:, None],
        use_qk_l2norm=normed,
        initial_state=state,
        initial_state_indices=_cute(slots),
        output_state_indices=_cute(target_slots),
    )


def delta_verify(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    draft_slots: torch.Tensor,
    draft_targets: torch.Tensor,
    num_accepted: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    normed: bool,
) -> None:
    """Verify drafts, all of each request. The state after each token goes to a slot of its own."""
    if not len(query):
        return
    batch, tokens = draft_slots.shape
    call(
        "flashinfer.gdn_decode",
        "gated_delta_rule_mtp",
        q=query.unflatten(0, (batch, tokens)),
        k=key.unflatten(0, (batch, tokens)),
        v=value.unflatten(0, (batch, tokens)),
        initial_state=state,
        initial_state_indices=draft_slots.gather(1, num_accepted.long()[:, None] - 1)[:, 0],
        A_log=_cute(A_log),
        a=a.unflatten(0, (batch, tokens)),
        dt_bias=_cute(dt_bias),
        b=b.unflatten(0, (batch, tokens)),
        scale=scale,
        output=out.unflatten(0, (batch, tokens)),
        ssm_state_indices=_cute(draft_targets),
        disable_state_update=False,
        use_qk_l2norm=normed,
        # The final state, which would go to the slot that was read.
        output_state_indices=_cute(draft_targets[:, -1].contiguous()),
    )


def delta_prefill(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    target_slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    normed: bool,
) -> None:
    """Prefill chunk by chunk with states in a pool; a request without a state reads the slot -1."""
    if not len(query):
        return
    call(
        "flashinfer.gdn_prefill",
        "chunk_gated_delta_rule",
        q=query,
        k=key,
        v=value,
        g=log_decay.exp(),
        beta=_cute(beta.float()),
        scale=scale,
        initial_state=state,
        output_final_state=True,
        cu_seqlens=_cute(cu_seqlens),
        use_qk_l2norm_in_kernel=normed,
        output=out,
        output_state=state,
        state_indices=torch.where(has_initial_state, slots, -1),
        output_state_indices=_cute(target_slots),
    )


_CUTE: Final = partial(visible.missing, _ARCHS, ("flashinfer", "cutlass"))
_DELTA: Final[dict[str, Any]] = {
    **_HOPPER,
    "op": StateOp.GATED_DELTA,
    # "K and V must each be >= 128"; states in bf16 need 128 (gdn_decode.py).
    "key_dims": (128,),
    "value_dims": (128,),
    "gaps": False,
    "strided": False,
    "normed": (False, True),
    "patience": 20.0,
}
# exp, softplus and the reciprocal of the norm are approximate, with the errors above (gdn_decode_pretranspose.py).
_OF_TOKENS: Final = MAMBA.noise_model
GDN_DECODE: Final = FlashInferStates(
    "flashinfer:gdn_decode",
    {StateMode.DECODE: delta_decode, StateMode.VERIFY: delta_verify},
    StateCapability(
        modes=(StateMode.DECODE, StateMode.VERIFY),
        most_drafts=_DRAFTS,
        ragged=False,
        whole_verifies=True,
        **_DELTA,
    ),
    noise_model=_OF_TOKENS,
    why_missing=_CUTE,
)
GDN_DECODE_BF16: Final = FlashInferStates(
    "flashinfer:gdn_decode_bf16",
    {StateMode.DECODE: delta_decode},
    StateCapability(
        modes=(StateMode.DECODE,),
        state_dtypes=(DType.BFLOAT16,),
        # "-1 is redirected to initial_state[0], which acts as a sacrificial null buffer"
        # (gated_delta_rule_decode_pretranspose).
        **{**_DELTA, "padded_rows": (PaddedRow.DUMMY,)},
        reserves_dummy=True,
    ),
    noise_model=_OF_TOKENS,
    why_missing=_CUTE,
)
GDN_PREFILL: Final = FlashInferStates(
    "flashinfer:gdn_prefill",
    {StateMode.PREFILL: delta_prefill},
    StateCapability(modes=(StateMode.PREFILL,), given=True, empty_rows=False, **_DELTA),
    # Chunks of 64 tokens with operands in bf16 on tensor cores. Logarithms are those of decays + 1e-10 (alpha.py:37 of
    # gdn_kernels/delta_rule_dsl), which are the decays themselves where these are far smaller.
    noise_model=msgspec.structs.replace(StateNoise.chunked(torch.bfloat16), decay_offset=1e-10),
    why_missing=_CUTE,
)


def backends() -> tuple[StateBackend, ...]:
    """Return all of them."""
    return (MAMBA, GDN_DECODE, GDN_DECODE_BF16, GDN_PREFILL)
