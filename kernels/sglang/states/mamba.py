"""Mamba-2's layer of a release, MambaMixer2, and native kernels under the names of those that it calls.

A file and line below sglang/srt/ is that of SGLang 0.5.23 unless another version is named.
"""

import inspect
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import torch

from attnfuzz.kernels.sglang.states.kernels import StateKernels
from attnfuzz.kernels.sglang.states.pool import LAYER, OTHER_WIDTH, part_dims
from attnfuzz.kernels.sglang.states.server import StateServer
from attnfuzz.reference.recurrent.case import StateMode

_MIXER: Final = "sglang.srt.layers.attention.mamba.mamba"


class MixerLayer:
    """A release's mixer on one rank, whose projections and norm return their inputs, with the weights of a case."""

    def __init__(self, server: StateServer, weights: Mapping[str, Any]) -> None:
        self._server = server
        case, kind = server.state_case, server.kind
        group, _, self._inner = part_dims(case, kind)
        channels = 2 * group + self._inner
        self._heads = 1 if kind.convolves else case.shape.value_heads
        groups = 1 if kind.convolves else case.shape.heads
        module = server.loaded.module(_MIXER).MambaMixer2
        mixer = self._mixer = module.__new__(module)
        torch.nn.Module.__init__(mixer)
        if kind.convolves:
            taps, bias = weights["weight"], weights["bias"]
            parameters = {"A": -torch.ones(1), "D": torch.ones(1), "dt_bias": torch.ones(1)}
        else:
            taps, bias = torch.zeros(channels, OTHER_WIDTH, dtype=case.dtype.torch_dtype), None
            parameters = {name: weights[name] for name in ("A", "D", "dt_bias")}
        members: dict[str, Any] = {
            "tp_size": 1,
            "num_heads": self._heads,
            "head_dim": self._inner // self._heads,
            "ssm_state_size": group // groups,
            "n_groups": groups,
            "groups_ssm_state_size": group,
            "intermediate_size": self._inner,
            "conv_dim": channels,
            "activation": "silu" if weights.get("activated", True) else None,
            "conv1d": SimpleNamespace(weight=taps.unsqueeze(1), bias=bias),
            **parameters,
            "in_proj": lambda projected: (projected, None),
            "norm": lambda out, _gate: out,
            "out_proj": lambda out: (out, None),
        }
        for name, value in members.items():
            setattr(mixer, name, value)

    def inputs(self, contents: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the results of the layer's first projection: gates of zeros, x, B and C, and steps."""
        if "dt" in contents:
            mixed = torch.cat([contents[name].flatten(1) for name in ("x", "B", "C")], dim=-1)
            step = contents["dt"]
        else:
            mixed = contents["x"]
            step = mixed.new_zeros(len(mixed), 1)
        gate = mixed.new_zeros(len(mixed), self._inner)
        return {"hidden_states": torch.cat((gate, mixed, step), dim=-1)}

    def forward(self, batch: Any, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Run the layer as a model does, which skips it in an idle batch (models/nemotron_h.py:616 and 659)."""
        projected = inputs["hidden_states"]
        out = projected.new_zeros(len(projected), self._inner)
        if not batch.forward_mode.is_idle():
            forward = self._server.linear.forward
            given = {
                "mixer": self._mixer,
                "hidden_states": projected,
                "output": out,
                "layer_id": LAYER,
                "forward_batch": batch,
                "use_triton_causal_conv": True,
            }
            taken = inspect.signature(forward).parameters
            forward(**{name: each for name, each in given.items() if name in taken})
        return out.view(len(out), self._heads, -1)


class MambaKernels(StateKernels):
    """The kernels of a session on layers of Mamba-2."""

    functions: ClassVar[tuple[str, ...]] = (
        *StateKernels.functions,
        "mamba_chunk_scan_combined",
        "selective_state_update",
    )

    def install(self) -> None:
        """Replace the release's kernels, and those of convolutions that its mixer imports on a GPU alone."""
        super().install()
        functions = {"causal_conv1d_fn": self.causal_conv1d_fn, "causal_conv1d_update": self.causal_conv1d_update}
        for name, function in functions.items():
            vars(sys.modules[_MIXER]).update({name: function, f"{name}_triton": function})

    def mamba_chunk_scan_combined(
        self,
        x: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        *,
        D: torch.Tensor,
        dt_bias: torch.Tensor,
        initial_states: torch.Tensor | None,
        cu_seqlens: torch.Tensor,
        out: torch.Tensor,
        state_dtype: torch.dtype,
        return_intermediate_states: bool = False,
        return_track_states: bool = False,
        **_: Any,
    ) -> Any:
        """Run prefills [1, tokens, ...] from `initial_states` [rows, ...]. Returns the state after each row.

        States between chunks precede it, and tracked ones follow it, in releases that ask for them: neither is read
        without a prefix cache.
        """
        rows = len(cu_seqlens) - 1
        if self._kind.convolves:
            self._keep_convolved(x[0], B[0], C[0])
            out.zero_()
            states = x.new_zeros(rows, 1, 1, 1, dtype=state_dtype)
        else:
            shape = (rows, *self._states.shape[1:])
            states = x.new_zeros(shape, dtype=state_dtype) if initial_states is None else initial_states.clone()
            numbers = torch.arange(rows, dtype=torch.int32, device=x.device)
            result = torch.empty_like(x[0])
            self._launch(
                StateMode.PREFILL,
                x=x[0],
                dt=dt[0],
                A=A,
                B=B[0],
                C=C[0],
                D=D,
                dt_bias=dt_bias,
                z=None,
                state=states,
                slots=numbers,
                target_slots=numbers,
                cu_seqlens=cu_seqlens,
                has_initial_state=torch.full((rows,), initial_states is not None, device=x.device),
                out=result,
            )
            out.copy_(result.view_as(out))
        if return_track_states:
            return None, states, None
        return (None, states) if return_intermediate_states else states

    def selective_state_update(
        self,
        state: torch.Tensor,
        x: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        D: torch.Tensor,
        *,
        dt_bias: torch.Tensor,
        state_batch_indices: torch.Tensor,
        out: torch.Tensor,
        disable_state_update: bool = False,
        intermediate_state_indices: torch.Tensor | None = None,
        **_: Any,
    ) -> None:
        """Run a token of each row `x` [rows, heads, dim], or drafts [rows, drafts + 1, heads, dim]."""
        rows, tokens = len(x), x.shape[1] if x.dim() == 4 else 1
        if self._kind.convolves:
            self._keep_convolved(*(each.reshape(rows * tokens, *each.shape[-2:]) for each in (x, B, C)))
            out.zero_()
            return
        # Parameters of heads are expanded to their elements (layers/attention/mamba/mamba.py:707).
        packed = {name: each.reshape(rows * tokens, *each.shape[-2:]) for name, each in (("x", x), ("B", B), ("C", C))}
        given = {
            **packed,
            "dt": dt[..., 0].reshape(rows * tokens, -1),
            "A": A[:, 0, 0].contiguous(),
            "D": D[:, 0].contiguous(),
            "dt_bias": dt_bias[:, 0].contiguous(),
            "z": None,
        }
        result = torch.empty_like(packed["x"])
        starts = torch.arange(0, rows * tokens + 1, tokens, dtype=torch.int32, device=x.device)
        if disable_state_update:
            assert intermediate_state_indices is not None
            self._drafts(given, result, state_batch_indices, starts, tokens, intermediate_state_indices)
        else:
            slots = state_batch_indices.int()
            self._launch(
                StateMode.PREFILL,
                **given,
                state=state,
                slots=slots,
                target_slots=slots,
                cu_seqlens=starts,
                has_initial_state=torch.ones(rows, dtype=torch.bool, device=x.device),
                out=result,
            )
        out.copy_(result.view_as(out))
