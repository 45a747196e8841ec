"""The model of a server: one attention layer, whose inputs follow from the token ids and positions of a forward.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.planning.queries import draw_queries, key_dim, place_queries
from attnfuzz.kernels.releases.recording import Recording, outside, record
from attnfuzz.kernels.vllm.pool import VllmPool
from attnfuzz.kernels.vllm.quantisation import Quantisation
from attnfuzz.reference.case import Case

LAYER: Final = "model.layers.0.self_attn.attn"
"""The name of the layer: a case has one."""


@dataclass(frozen=True)
class LayerInputs:
    """The inputs of a forward: query [rows, q_heads, dim], key and value [rows, kv_heads, dim]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor

    def fill(self, other: "LayerInputs") -> None:
        """Copy other inputs into these, which a graph reads."""
        for mine, new in ((self.query, other.query), (self.key, other.key), (self.value, other.value)):
            mine.copy_(new)


@dataclass(frozen=True)
class _Captured:
    graph: Recording
    inputs: LayerInputs
    out: torch.Tensor

    def replay(self) -> torch.Tensor:
        """Replay the graph. Returns its output."""
        self.graph.replay()
        return self.out


class Model:
    """A model with the layer's parameters, in place of the network of a release's model runner.

    A token's key and value follow from its id, an index into the pool's tokens, and its query from the step. As with a
    rotary embedding, they also depend on the position: at a wrong one they are another token's.

    Attributes:
        capturing: Whether a graph is captured.
        writes: Whether forwards write the cache.
        out: The output of the last forward [rows, q_heads, head_dim].

    """

    layer_name = LAYER

    def __init__(self, loaded: Any, case: Case, bench: Bench, pool: VllmPool, layer: Any) -> None:
        self._case, self._bench, self._pool, self._layer = case, bench, pool, layer
        self._quantisation = Quantisation.of(case)
        self._context = loaded.module("vllm.forward_context")
        self._full = loaded.module("vllm.config.compilation").CUDAGraphMode.FULL
        self._captured: dict[Any, _Captured] = {}
        self._host: Sequence[torch.Tensor] = ()
        self._queries: torch.Tensor | None = None
        self._rows: Mapping[int, int] = {}
        self._last: Callable[[], torch.Tensor] | None = None
        self.capturing = False
        self.writes = True
        self.out: torch.Tensor | None = None

    def keep_on_host(self, host: Sequence[torch.Tensor]) -> None:
        """Declare the runner's tensors that no graph holds: copies on the host."""
        self._host = host

    def begin(self, index: int) -> None:
        """Use the queries of a step, packed in the order of the case's requests."""
        step, spans = self._case.steps[index], self._pool.tokens.spans
        self._queries = self._quantisation.rounded(self._draw(index, step.padded_tokens))
        ids = [
            spans[each.slot].start + position
            for each in step.requests
            for position in range(each.kv_len - each.q_len, each.kv_len)
        ]
        self._rows = {token: row for row, token in enumerate(ids)}

    def _draw(self, index: int, rows: int) -> torch.Tensor:
        """Return the queries of a step [rows, q_heads, dim]."""
        return draw_queries(self._case, index, rows, key_dim(self._case))

    def __call__(self, *, input_ids: torch.Tensor, positions: torch.Tensor, **_: Any) -> torch.Tensor:
        """Run the model as a forward context says (v1/worker/gpu_model_runner.py, _model_forward and _dummy_run)."""
        context = self._context.get_forward_context()
        with outside():
            inputs = self._embed(input_ids.tolist(), positions.tolist())
        if context.cudagraph_runtime_mode == self._full:
            return self._in_graph(context, inputs)
        placed = self._place(inputs)
        return self._finish(lambda: self._attend(context, placed))

    def again(self) -> torch.Tensor:
        """Run the last forward's layer again. Returns its output."""
        assert self._last is not None
        return self._last()

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states: nothing samples."""
        return hidden

    def _in_graph(self, context: Any, inputs: LayerInputs) -> torch.Tensor:
        """Capture or replay the graph of a batch's shape, as its wrapper does (compilation/cuda_graph.py)."""
        shape = context.batch_descriptor
        if self.capturing:
            placed = self._place(inputs)
            with record(self._bench, host=self._host) as graph:
                out = self._attend(context, placed)
            self._captured[shape] = _Captured(graph, placed, out)
            return self._finish(lambda: out)
        if shape not in self._captured:
            raise RuntimeError(f"the release replays a graph that it has not captured: {shape}")
        captured = self._captured[shape]
        captured.inputs.fill(inputs)
        return self._finish(captured.replay)

    def _finish(self, layer: Callable[[], torch.Tensor]) -> torch.Tensor:
        self._last, self.out = layer, layer()
        return self.out.flatten(1)

    def _attend(self, context: Any, inputs: LayerInputs) -> torch.Tensor:
        """Write the cache and attend as an Attention layer does (layers/attention/attention.py, forward)."""
        geometry, layer = self._case.geometry, self._layer
        shape = (inputs.query.shape[0], geometry.q_heads * geometry.head_dim_vo)
        out = torch.empty(shape, dtype=geometry.dtype.torch_dtype, device=self._bench.device)
        out = out.view(-1, geometry.q_heads, geometry.head_dim_vo)
        # A dummy batch without a graph has no metadata, and its output is zeros.
        metadata = context.attn_metadata and context.attn_metadata[self.layer_name]
        slots = context.slot_mapping.get(self.layer_name)
        if slots is not None and self.writes:
            layer.impl.do_kv_cache_update(layer, inputs.key, inputs.value, self._pool.kv_cache, slots)
        query = self._quantisation.given(inputs.query, layer.impl)
        layer.impl.forward(layer, query, inputs.key, inputs.value, self._pool.kv_cache, metadata, out)
        return out

    def _embed(self, ids: Sequence[int], positions: Sequence[int]) -> LayerInputs:
        """Return the layer's inputs for tokens at positions."""
        assert self._queries is not None
        at = [self._token(token, position) for token, position in zip(ids, positions, strict=True)]
        padding = range(len(self._rows), len(self._queries)) or range(1)
        rows = [self._rows.get(token, padding[row % len(padding)]) for row, token in enumerate(at)]
        return LayerInputs(self._queries[rows], *self._tokens(at))

    def _tokens(self, at: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return new keys and values [rows, kv_heads, dim], by their indices into the pool's tokens."""
        tokens, scales, dtype = self._pool.tokens, self._case.scales, self._case.geometry.dtype.torch_dtype
        return (
            self._quantisation.new(tokens.key[at], scales.k, dtype),
            self._quantisation.new(tokens.value[at], scales.v, dtype),
        )

    def _token(self, token: int, position: int) -> int:
        """Return the token itself at its own position, elsewhere a token that belongs to no request."""
        tokens = self._pool.tokens
        right = any(token in span and token - span.start == position for span in tokens.spans.values())
        return token if right else tokens.extra[position % len(tokens.extra)]

    def _place(self, inputs: LayerInputs) -> LayerInputs:
        memory = self._bench.memory
        return LayerInputs(
            place_queries(self._case, self._bench, inputs.query),
            memory.copy("new_key", inputs.key),
            memory.copy("new_value", inputs.value),
        )
