"""The model of a server: one recurrent layer, whose inputs follow from the ids of a forward's tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.releases.state_inputs import StateInputs
from attnfuzz.kernels.vllm.model import Model
from attnfuzz.kernels.vllm.states.demands import Demands
from attnfuzz.kernels.vllm.states.imports import copied_whole
from attnfuzz.kernels.vllm.states.pool import LanePool
from attnfuzz.reference.recurrent.values import StepInputs


class StateModel(Model):
    """A model with one recurrent layer.

    Attributes:
        session: Draws and places inputs.
        inputs: Those of the last forward, row by row.

    """

    def __init__(self, loaded: Any, demands: Demands, bench: Bench, pool: LanePool, session: Any) -> None:
        super().__init__(loaded, demands.case, bench, pool, None)  # type: ignore[arg-type]
        self._demands, self._session = demands, session
        self._index = 0
        self._copied = copied_whole(loaded)
        self.inputs: StepInputs | None = None

    def get_mamba_state_copy_funcs(self, types: Iterable[Any]) -> dict[Any, tuple[Any, ...]]:
        """Return the function that says which block of a request holds its state (0.33.0: layers/mamba)."""
        return dict.fromkeys(types, self.get_mamba_state_copy_func())

    def get_mamba_state_copy_func(self) -> tuple[Any, ...]:
        """Return this function; a release such as 0.18.1 asks for it alone."""
        return (self._copied,)

    def begin(self, index: int) -> None:
        """Use the inputs of a step, packed in the order of the case's requests."""
        self._index, spans = index, self._pool.tokens.spans
        ids = [
            spans[each.slot].start + position
            for each in self._case.steps[index].requests
            for position in range(each.kv_len - each.q_len, each.kv_len)
        ]
        self._rows = {token: row for row, token in enumerate(ids)}

    def _embed(self, ids: Sequence[int], positions: Sequence[int]) -> Any:
        """Return the inputs of tokens; those of any other token are those of padding."""
        spans = self._pool.tokens.spans.values()
        own = {span.start + at for span in spans for at in range(len(span))}
        known = len(self._rows)
        rows = []
        for row, (token, position) in enumerate(zip(ids, positions, strict=True)):
            right = token in own and any(token in span and token - span.start == position for span in spans)
            rows.append(self._rows.get(token, known + row) if right else known + row)
        drawn = self._session.draw(self._index, known + len(ids))
        self.inputs = StepInputs(*(each[rows] for each in vars(drawn).values()))
        return StateInputs(self._session.contents(self.inputs))

    def _place(self, inputs: Any) -> Any:
        return StateInputs(self._session.place(inputs.tensors))

    def _attend(self, context: Any, inputs: Any) -> torch.Tensor:
        """Run the layer; a dummy batch without a graph has no metadata."""
        rows = next(iter(inputs.tensors.values())).shape[0]
        out = torch.empty((rows, *self._session.out_shape), dtype=self._session.dtype, device=self._bench.device)
        metadata = context.attn_metadata and context.attn_metadata[self.layer_name]
        if metadata:
            self._session.run_layer(self._session.layer, metadata, inputs.tensors, out)
        return out
