"""Native kernels of recurrent state, as functions with the arguments that `kernels.recurrent.backend` documents.

Inputs, outputs and pools are float32, bfloat16 or float16. Slots, starts and counts are trusted (TRAPS.md).
"""

import torch

from attnfuzz.kernels.native import build


def gated_delta_rule(
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
    target_slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    eps: float,
    normed: bool,
) -> None:
    """Run the delta rule for rows of any numbers of tokens. With `a` [tokens, value_heads, key_dim], this is KDA."""
    build.load().recur(
        *(query, key, value, a, b, None, A_log, dt_bias, None, state, slots, target_slots, cu_seqlens),
        *(has_initial_state, None, out, scale, eps, a.dim() == 3, True, normed, False),
    )


def gated_delta_rule_verify(
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
    draft_targets: torch.Tensor,
    cu_seqlens: torch.Tensor,
    num_accepted: torch.Tensor,
    out: torch.Tensor,
    scale: float,
    eps: float,
    normed: bool,
) -> None:
    """Run the delta rule for drafts, and keep the state after each."""
    build.load().recur(
        *(query, key, value, a, b, None, A_log, dt_bias, None, state, draft_slots, draft_targets, cu_seqlens),
        *(None, num_accepted, out, scale, eps, a.dim() == 3, True, normed, False),
    )


def given_delta_rule(
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
    eps: float,
    normed: bool,
) -> None:
    """Run the delta rule with decays and beta as they are."""
    build.load().recur(
        *(query, key, value, log_decay, beta, None, None, None, None, state, slots, target_slots, cu_seqlens),
        *(has_initial_state, None, out, scale, eps, log_decay.dim() == 3, False, normed, False),
    )


def lightning_attention(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slope: torch.Tensor,
    state: torch.Tensor,
    slots: torch.Tensor,
    target_slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
    scale: float,
) -> None:
    """Run linear attention with a constant decay."""
    build.load().recur(
        *(query, key, value, None, None, None, slope, None, None, state, slots, target_slots, cu_seqlens),
        *(has_initial_state, None, out, scale, 0.0, False, False, False, False),
    )


def selective_scan(
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
    cu_seqlens: torch.Tensor,
    has_initial_state: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Run Mamba's recurrence; with A [value_heads, key_dim], that of the first Mamba."""
    build.load().recur(
        *(C, B, x, dt, None, z, A, dt_bias, D, state, slots, target_slots, cu_seqlens),
        *(has_initial_state, None, out, 1.0, 0.0, A.dim() == 2, False, False, True),
    )


def selective_scan_verify(
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
    draft_slots: torch.Tensor,
    draft_targets: torch.Tensor,
    cu_seqlens: torch.Tensor,
    num_accepted: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Run Mamba's recurrence for drafts, and keep the state after each."""
    build.load().recur(
        *(C, B, x, dt, None, z, A, dt_bias, D, state, draft_slots, draft_targets, cu_seqlens),
        *(None, num_accepted, out, 1.0, 0.0, A.dim() == 2, False, False, True),
    )


def causal_conv1d(
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
    """Convolve each channel with its last inputs, and keep them."""
    build.load().convolve(x, weight, bias, state, slots, cu_seqlens, has_initial_state, None, out, activated)


def causal_conv1d_verify(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    state: torch.Tensor,
    slots: torch.Tensor,
    cu_seqlens: torch.Tensor,
    num_accepted: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Convolve drafts, and keep all of them behind the inputs before."""
    build.load().convolve(x, weight, bias, state, slots, cu_seqlens, None, num_accepted, out, activated)
