"""Native kernels under the names of the release's kernels of recurrent layers, which trust their caller alike."""

import sys
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from attnfuzz.kernels.recurrent.backend import parameters
from attnfuzz.kernels.releases.stand_ins import current
from attnfuzz.kernels.sglang.states.kinds import LinearKind
from attnfuzz.reference.recurrent.case import StateMode
from attnfuzz.reference.recurrent.values import NORM_EPSILON


class StateKernels:
    """The kernels of a session on layers of a kind. The op that the kind does not have returns its inputs.

    `slots` is the number of the pool's slots, behind which the states of drafts lie in `states`. A convolution's
    results are stored in `convolved` where the recurrence gets them.
    """

    functions: ClassVar[tuple[str, ...]] = (
        "causal_conv1d_fn",
        "causal_conv1d_update",
        "fused_gdn_gating",
        "chunk_gated_delta_rule",
        "chunk_kda",
        "fused_recurrent_kda_packed_decode",
        "fused_recurrent_gated_delta_rule_packed_decode",
        "fused_sigmoid_gating_delta_rule_update",
        "fused_recurrent_gated_delta_rule_update",
        "fused_mamba_state_scatter_with_mask",
        "fused_conv_window_scatter_with_mask",
    )
    """The names of the release's functions."""

    def __init__(self, kind: LinearKind, states: torch.Tensor, slots: int) -> None:
        self._kind, self._states, self._slots = kind, states, slots
        self.convolved: torch.Tensor | None = None

    def install(self) -> None:
        """Replace the release's kernels in all of its modules."""
        functions = {name: getattr(self, name) for name in self.functions}
        for name in [name for name in sys.modules if name.startswith("sglang.")]:
            module = vars(sys.modules[name])
            module.update({each: function for each, function in functions.items() if each in module})

    def _launch(self, mode: StateMode, **arguments: Any) -> None:
        op = self._kind.kernels.by_mode[mode]
        taken = parameters(op.function)
        lower = current(op.name)
        lower.launch(lower.op(op.name), {name: value for name, value in arguments.items() if name in taken})

    # The convolution

    def causal_conv1d_fn(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        activation: str | None,
        conv_states: torch.Tensor,
        has_initial_state: torch.Tensor,
        cache_indices: torch.Tensor,
        query_start_loc: torch.Tensor,
        **_: Any,
    ) -> torch.Tensor:
        """Convolve prefills. `x` is [channels, tokens], as is the result."""
        if not self._kind.convolves:
            return x.clone()
        out = torch.empty(x.shape[1], x.shape[0], dtype=x.dtype, device=x.device)
        self._launch(
            StateMode.PREFILL,
            x=x.T.contiguous(),
            weight=weight,
            bias=bias,
            activated=activation is not None,
            state=conv_states,
            slots=cache_indices,
            cu_seqlens=query_start_loc,
            has_initial_state=has_initial_state,
            out=out,
        )
        return out.T

    def causal_conv1d_update(
        self,
        x: torch.Tensor,
        conv_state: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        *,
        conv_state_indices: torch.Tensor,
        intermediate_conv_window: torch.Tensor | None = None,
        intermediate_state_indices: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """Convolve a token of each row `x` [rows, channels], or drafts [rows, channels, drafts + 1]."""
        if not self._kind.convolves:
            return x.clone()
        rows, tokens = x.shape[0], x.shape[2] if x.dim() > 2 else 1
        packed = (x.transpose(1, 2) if x.dim() > 2 else x).reshape(rows * tokens, -1)
        out = torch.empty_like(packed)
        given = {"x": packed, "weight": weight, "bias": bias, "activated": activation is not None, "out": out}
        starts = torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32, device=x.device)
        initial = torch.ones(rows, dtype=torch.bool, device=x.device)
        if len(conv_state_indices) < rows:
            raise IndexError(
                f"the convolution has {rows} rows, and conv_state_indices {len(conv_state_indices)}: the kernel reads "
                "behind the last of them"
            )
        if intermediate_conv_window is not None:
            assert intermediate_state_indices is not None
            self._keep_windows(
                packed, conv_state, conv_state_indices, intermediate_conv_window, intermediate_state_indices
            )
        self._launch(
            StateMode.PREFILL,
            **given,
            state=conv_state,
            slots=conv_state_indices,
            cu_seqlens=starts,
            has_initial_state=initial,
        )
        return out.view(rows, tokens, -1).transpose(1, 2) if x.dim() > 2 else out

    def _keep_windows(
        self,
        packed: torch.Tensor,
        states: torch.Tensor,
        slots: torch.Tensor,
        windows: torch.Tensor,
        indices: torch.Tensor,
    ) -> None:
        """Store the inputs that precede the next token, after each token of rows that are not padding.

        0.5.23: kernels/ops/mamba/causal_conv1d_triton.py:980; the pool gets those after the last token.
        """
        rows, drafts, before = len(slots), windows.shape[1], states.shape[-1]
        inputs = packed.view(rows, drafts, -1).transpose(1, 2)
        whole = torch.cat((states[slots.clamp(min=0).long()], inputs), dim=-1)
        at, real = indices[:rows].long(), (slots >= 0).view(-1, 1, 1)
        for token in range(drafts):
            window = whole[:, :, token + 1 : token + 1 + before]
            windows[at, token] = torch.where(real, window, windows[at, token])

    # The recurrence

    def fused_gdn_gating(
        self, A_log: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dt_bias: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the arguments of decays and beta [1, tokens, heads] in their place: the kernels compute them."""
        decay, beta = a.unsqueeze(0), b.unsqueeze(0)
        decay.gates = {"A_log": A_log, "dt_bias": dt_bias}  # type: ignore[attr-defined]
        return decay, beta

    def chunk_gated_delta_rule(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        *,
        initial_state: torch.Tensor,
        initial_state_indices: torch.Tensor,
        cu_seqlens: torch.Tensor,
        use_qk_l2norm_in_kernel: bool,
        **_: Any,
    ) -> tuple[torch.Tensor, None, None]:
        """Run prefills."""
        given = self._given(q, k, v, g[0], beta[0], use_qk_l2norm_in_kernel, g.gates)  # type: ignore[attr-defined]
        return self._rows(given, initial_state, initial_state_indices, cu_seqlens), None, None

    def chunk_kda(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        *,
        initial_state: torch.Tensor,
        initial_state_indices: torch.Tensor,
        cu_seqlens: torch.Tensor,
        A_log: torch.Tensor,
        dt_bias: torch.Tensor,
        use_qk_l2norm_in_kernel: bool,
        beta_is_raw: bool,
        **_: Any,
    ) -> torch.Tensor:
        """Run prefills with a decay for each channel of a key."""
        assert beta_is_raw
        gates = {"A_log": A_log, "dt_bias": dt_bias}
        given = self._given(q, k, v, g, beta, use_qk_l2norm_in_kernel, gates)
        return self._rows(given, initial_state, initial_state_indices, cu_seqlens)

    def fused_recurrent_gated_delta_rule_packed_decode(
        self,
        mixed_qkv: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        A_log: torch.Tensor,
        dt_bias: torch.Tensor,
        scale: float,
        initial_state: torch.Tensor,
        out: torch.Tensor,
        ssm_state_indices: torch.Tensor,
        use_qk_l2norm_in_kernel: bool,
        **_: Any,
    ) -> None:
        """Run a token of each row. `out` is [rows, 1, heads, value_dim]."""
        rows, value = len(mixed_qkv), out.shape[2] * out.shape[3]
        key = (mixed_qkv.shape[1] - value) // 2
        parts = mixed_qkv.split([key, key, value], dim=-1)
        dims = (key, key, value) if self._kind.convolves else (initial_state.shape[2],) * 2 + (out.shape[3],)
        query, keys, values = (part.reshape(1, rows, -1, dim) for part, dim in zip(parts, dims, strict=True))
        gates = {"A_log": A_log, "dt_bias": dt_bias}
        given = self._given(query, keys, values, a, b, use_qk_l2norm_in_kernel, gates, scale)
        starts = torch.arange(rows + 1, dtype=torch.int32, device=mixed_qkv.device)
        out.copy_(self._rows(given, initial_state, ssm_state_indices, starts).view_as(out))

    fused_recurrent_kda_packed_decode = fused_recurrent_gated_delta_rule_packed_decode

    def fused_sigmoid_gating_delta_rule_update(
        self,
        A_log: torch.Tensor,
        dt_bias: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        initial_state_source: torch.Tensor,
        initial_state_indices: torch.Tensor,
        cu_seqlens: torch.Tensor,
        use_qk_l2norm_in_kernel: bool,
        **others: Any,
    ) -> torch.Tensor:
        """Run decodes, or drafts."""
        gates = {"A_log": A_log, "dt_bias": dt_bias}
        given = self._given(q, k, v, a, b, use_qk_l2norm_in_kernel, gates)
        return self._update(given, initial_state_source, initial_state_indices, cu_seqlens, **others)

    def fused_recurrent_gated_delta_rule_update(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        *,
        initial_state_source: torch.Tensor,
        initial_state_indices: torch.Tensor,
        cu_seqlens: torch.Tensor,
        use_qk_l2norm_in_kernel: bool,
        **others: Any,
    ) -> torch.Tensor:
        """Run drafts whose decays were computed before."""
        given = self._given(q, k, v, g[0], beta[0], use_qk_l2norm_in_kernel, g.gates)  # type: ignore[attr-defined]
        return self._update(given, initial_state_source, initial_state_indices, cu_seqlens, **others)

    def _given(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        normed: bool,
        gates: Mapping[str, torch.Tensor],
        scale: float | None = None,
    ) -> dict[str, Any]:
        """Return the arguments of a native kernel for inputs [1, tokens, heads, dim]; scale is 1/sqrt(d) by default."""
        if self._kind.convolves:
            return {"query": q[0], "key": k[0], "value": v[0]}
        tokens, heads = v.shape[1:3]
        if self._kind.decays_by_channel:
            a, b = a.reshape(tokens, heads, -1), b.reshape(tokens, heads)
            gates = {"A_log": gates["A_log"].reshape(-1), "dt_bias": gates["dt_bias"].reshape(heads, -1)}
        return {
            "query": q[0],
            "key": k[0],
            "value": v[0],
            "a": a,
            "b": b,
            "normed": normed,
            "eps": NORM_EPSILON,
            "scale": q.shape[-1] ** -0.5 if scale is None else scale,
            **gates,
        }

    def _update(
        self,
        given: dict[str, Any],
        states: torch.Tensor,
        slots: torch.Tensor,
        starts: torch.Tensor,
        *,
        disable_state_update: bool = False,
        intermediate_states_buffer: torch.Tensor | None = None,
        intermediate_state_indices: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        if not disable_state_update or self._kind.convolves:
            return self._rows(given, states, slots, starts)
        assert intermediate_states_buffer is not None
        assert intermediate_state_indices is not None
        out = torch.empty_like(given["value"])
        self._drafts(given, out, slots, starts, intermediate_states_buffer.shape[1], intermediate_state_indices)
        return out.unsqueeze(0)

    def _drafts(
        self,
        given: dict[str, Any],
        out: torch.Tensor,
        slots: torch.Tensor,
        starts: torch.Tensor,
        drafts: int,
        intermediate_state_indices: torch.Tensor,
    ) -> None:
        """Run rows of `drafts` tokens, which leave their slots as they are and keep the state after each token."""
        rows = len(starts) - 1
        read = slots[:rows].int().unsqueeze(1)
        token = torch.arange(drafts, dtype=torch.int32, device=read.device)
        kept = self._slots + intermediate_state_indices[:rows].int().unsqueeze(1) * drafts + token
        self._launch(
            StateMode.VERIFY,
            **given,
            state=self._states,
            draft_slots=read.expand(rows, drafts).contiguous(),
            draft_targets=torch.where(read < 0, read, kept),
            cu_seqlens=starts,
            num_accepted=torch.ones(rows, dtype=torch.int32, device=read.device),
            out=out,
        )

    def _rows(
        self, given: dict[str, Any], states: torch.Tensor, slots: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        """Run rows that keep their last state. Returns out [1, tokens, heads, value_dim]."""
        out = torch.empty_like(given["value"])
        if self._kind.convolves:
            self._keep_convolved(*(given[name] for name in ("query", "key", "value")))
            return out.zero_().unsqueeze(0)
        rows = slots[: len(starts) - 1].int()
        self._launch(
            StateMode.PREFILL,
            **given,
            state=states,
            slots=rows,
            target_slots=rows,
            cu_seqlens=starts,
            has_initial_state=torch.ones(len(rows), dtype=torch.bool, device=rows.device),
            out=out,
        )
        return out.unsqueeze(0)

    def _keep_convolved(self, *parts: torch.Tensor) -> None:
        """Store the parts [tokens, heads, dim] of a convolution's results."""
        assert self.convolved is not None
        self.convolved[: len(parts[0])].copy_(torch.cat([part.flatten(1) for part in parts], dim=-1))

    # Copies

    def fused_mamba_state_scatter_with_mask(
        self,
        dst: torch.Tensor,
        src: torch.Tensor,
        dst_indices_raw: torch.Tensor,
        step_indices_raw: torch.Tensor,
        src_indices_raw: torch.Tensor | None = None,
    ) -> None:
        """Copy states after drafts, src[:, row, step], to the slots of their rows; none for a step below 0."""
        rows = torch.arange(len(step_indices_raw)) if src_indices_raw is None else src_indices_raw
        chosen = step_indices_raw >= 0
        at, step, row = (each[chosen].long() for each in (dst_indices_raw, step_indices_raw, rows))
        dst[:, at] = src[:, row, step].to(dst.dtype)

    fused_conv_window_scatter_with_mask = fused_mamba_state_scatter_with_mask
