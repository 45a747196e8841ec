"""The kernels' calls of a recurrent layer, with the metadata that its builder made.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from attnfuzz.kernels.recurrent.backend import StateBackend, parameters
from attnfuzz.kernels.releases.stand_ins import current
from attnfuzz.reference.recurrent.case import StateMode

Inputs = Mapping[str, torch.Tensor]
"""Inputs of tokens, by the names of the kernels' arguments."""

Forward = Callable[["StateLayer", Any, Inputs, torch.Tensor], None]
"""Runs a layer with its metadata, and writes the outputs."""


@dataclass
class StateLayer:
    """A layer's kernels and tensors: `fixed` are its weights and options, `state` its pool."""

    kernels: StateBackend
    fixed: Mapping[str, Any]
    state: torch.Tensor

    def rows(
        self,
        inputs: Inputs,
        out: torch.Tensor,
        *,
        slots: torch.Tensor,
        starts: torch.Tensor,
        initial: torch.Tensor | None = None,
        targets: torch.Tensor | None = None,
        state: torch.Tensor | None = None,
    ) -> None:
        """Run rows that keep their last state, from the state in their slot if there is an `initial` one.

        States are written to `targets`, or the same slots, of `state`, or the pool.
        """
        if initial is None:
            initial = torch.ones(slots.shape[0], dtype=torch.bool, device=slots.device)
        targets = slots if targets is None else targets
        given = {"slots": slots, "target_slots": targets, "cu_seqlens": starts, "has_initial_state": initial}
        state = self.state if state is None else state
        self._launch(StateMode.PREFILL, {**inputs, **given, "out": out, "state": state})

    def drafts(
        self,
        inputs: Inputs,
        out: torch.Tensor,
        *,
        table: torch.Tensor,
        starts: torch.Tensor,
        accepted: torch.Tensor,
    ) -> None:
        """Run rows that keep the state after each token, in the column of the token. `table` is [rows, drafts + 1]."""
        # Triton takes counts of any integer type (0.18.1: int64).
        given = {"draft_slots": table, "draft_targets": table, "slots": table[:, 0], "num_accepted": accepted.int()}
        self._launch(StateMode.VERIFY, {**inputs, **given, "cu_seqlens": starts, "out": out, "state": self.state})

    def _launch(self, mode: StateMode, arguments: dict[str, Any]) -> None:
        op = self.kernels.by_mode[mode]
        given = {**self.fixed, **arguments}
        taken = parameters(op.function)
        lower = current(op.name)
        lower.launch(lower.op(op.name), {name: value for name, value in given.items() if name in taken})


def gated_delta_net(layer: StateLayer, metadata: Any, inputs: Inputs, out: torch.Tensor) -> None:
    """Run a layer of Qwen3-Next (layers/mamba/gdn/qwen_gdn_linear_attn.py:1556)."""
    _gated(layer, metadata, inputs, out, _without_drafts)


def gated_delta_convolution(layer: StateLayer, metadata: Any, inputs: Inputs, out: torch.Tensor) -> None:
    """Run the convolution of such a layer."""
    _gated(layer, metadata, inputs, out, _convolved)


def _gated(layer: StateLayer, metadata: Any, inputs: Inputs, out: torch.Tensor, rest: Forward) -> None:
    """Run the verifies of a batch, and `rest` on its other tokens."""
    inputs, out = _first(inputs, metadata.num_actual_tokens), out[: metadata.num_actual_tokens]
    if metadata.spec_sequence_masks is None:
        rest(layer, metadata, inputs, out)
    elif metadata.num_prefills == 0 and metadata.num_decodes == 0:
        _verified(layer, metadata, inputs, out)
    else:
        for forward, index in ((_verified, metadata.spec_token_indx), (rest, metadata.non_spec_token_indx)):
            part = torch.empty_like(out[: index.shape[0]])
            forward(layer, metadata, {name: each.index_select(0, index) for name, each in inputs.items()}, part)
            out.index_copy_(0, index.long(), part)


def _verified(layer: StateLayer, metadata: Any, inputs: Inputs, out: torch.Tensor) -> None:
    """Run verifies. Rows behind them only pad a batch (line 1646)."""
    rows = metadata.num_spec_decodes
    layer.drafts(
        inputs,
        out,
        table=metadata.spec_state_indices_tensor[:rows],
        starts=metadata.spec_query_start_loc[: rows + 1],
        accepted=metadata.num_accepted_tokens[:rows],
    )


def _without_drafts(layer: StateLayer, metadata: Any, inputs: Inputs, out: torch.Tensor) -> None:
    """Run prefills, and decodes without drafts, which come first."""
    slots, starts = metadata.non_spec_state_indices_tensor, metadata.non_spec_query_start_loc
    decodes, tokens = metadata.num_decodes, metadata.num_decode_tokens
    if not metadata.num_prefills:
        if decodes:
            layer.rows(inputs, out, slots=slots[:decodes], starts=starts[: decodes + 1])
        return
    if not hasattr(metadata, "prefill_query_start_loc"):
        # Before 0.23.0, prefills and decodes of a batch were one call.
        layer.rows(inputs, out, slots=slots, starts=starts, initial=metadata.has_initial_state)
        return
    peeled = decodes > 0 and metadata.spec_sequence_masks is None
    if peeled:
        layer.rows(_first(inputs, tokens), out[:tokens], slots=slots[:decodes], starts=starts[: decodes + 1])
        inputs, out = {name: each[tokens:] for name, each in inputs.items()}, out[tokens:]
    layer.rows(
        inputs,
        out,
        slots=metadata.prefill_state_indices,
        starts=metadata.prefill_query_start_loc,
        initial=metadata.prefill_has_initial_state,
    )


def _convolved(layer: StateLayer, metadata: Any, inputs: Inputs, out: torch.Tensor) -> None:
    """Run prefills and decodes without drafts: beside prefills, decodes are rows of the same call (line 1668)."""
    slots = metadata.non_spec_state_indices_tensor
    if metadata.num_prefills:
        starts, initial = metadata.non_spec_query_start_loc, metadata.has_initial_state
        layer.rows(inputs, out, slots=slots, starts=starts, initial=initial)
    elif metadata.num_decodes:
        # Line 1687: a token of each row, padding included.
        rows = out.shape[0]
        starts = torch.arange(rows + 1, dtype=torch.int32, device=out.device)
        layer.rows(inputs, out, slots=slots[:rows], starts=starts)


def mamba(layer: StateLayer, metadata: Any, inputs: Inputs, out: torch.Tensor) -> None:
    """Run a layer of Mamba-2 (layers/mamba/mamba_mixer2.py:730)."""
    _mamba(layer, metadata, inputs, out, _in_chunks)


def mamba_convolution(layer: StateLayer, metadata: Any, inputs: Inputs, out: torch.Tensor) -> None:
    """Run the convolution of such a layer."""
    _mamba(layer, metadata, inputs, out, _whole)


def _mamba(layer: StateLayer, metadata: Any, inputs: Inputs, out: torch.Tensor, prefill: Forward) -> None:
    """Run the decodes of a batch, which come first, and `prefill` on its other tokens."""
    decodes, tokens, prefills = metadata.num_decodes, metadata.num_decode_tokens, metadata.num_prefills
    if decodes:
        table, decoding = metadata.state_indices_tensor_d, _first(inputs, tokens)
        starts = getattr(metadata, "query_start_loc_d", None)
        if metadata.num_accepted_tokens is None or starts is None:
            rows = torch.arange(tokens + 1, dtype=torch.int32, device=out.device)
            layer.rows(decoding, out[:tokens], slots=table[:tokens, 0], starts=rows)
        else:
            accepted = metadata.num_accepted_tokens
            layer.drafts(decoding, out[:tokens], table=table, starts=starts, accepted=accepted)
    if prefills:
        end = tokens + metadata.num_prefill_tokens
        prefill(layer, metadata, {name: each[tokens:end] for name, each in inputs.items()}, out[tokens:end])


def _whole(layer: StateLayer, metadata: Any, inputs: Inputs, out: torch.Tensor) -> None:
    slots, starts = metadata.state_indices_tensor_p, metadata.query_start_loc_p
    layer.rows(inputs, out, slots=slots, starts=starts, initial=metadata.has_initial_states_p)


def _in_chunks(layer: StateLayer, metadata: Any, inputs: Inputs, out: torch.Tensor) -> None:
    """Run prefills chunk by chunk, as the builder cuts them (line 857; ops/ssd_state_passing.py:69).

    A chunk is a row that begins with the state of its request, or of the chunk before if that has the same request. The
    state after the last chunk of a request goes to its slot. States between chunks are float32.

    Raises:
        ValueError: A chunk has more tokens than the kernels take.

    """
    of_request, starts, slots = metadata.seq_idx_p, metadata.cu_chunk_seqlen_p, metadata.state_indices_tensor_p
    if starts.diff().max() > metadata.chunk_size:
        raise ValueError(f"chunks of up to {metadata.chunk_size} tokens begin at {starts.tolist()}")
    prefills = slots.shape[0]
    states = layer.state.new_zeros((prefills + of_request.shape[0], *layer.state.shape[1:]), dtype=torch.float32)
    if metadata.prep_initial_states:
        initial = metadata.has_initial_states_p.nonzero()[:, 0]
        states[initial] = layer.state[slots[initial].long()].float()
    after = torch.arange(prefills, states.shape[0], dtype=torch.int32)
    before = torch.where(of_request.diff(prepend=of_request.new_tensor([-1])) != 0, of_request, after - 1)
    layer.rows(inputs, out, slots=before, targets=after, starts=starts, state=states)
    layer.state[slots.long()] = states[prefills + metadata.last_chunk_indices_p.long()].to(layer.state.dtype)


def _first(inputs: Inputs, tokens: int) -> dict[str, torch.Tensor]:
    return {name: each[:tokens] for name, each in inputs.items()}


FORWARDS: Mapping[str, Forward] = {
    "gdn": gated_delta_net,
    "gdn_conv": gated_delta_convolution,
    "mamba2": mamba,
    "mamba2_conv": mamba_convolution,
}
"""The forward of each kind."""
