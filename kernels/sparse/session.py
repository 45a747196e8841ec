"""A backend of sparse attention running one case, step by step and op by op."""

from collections.abc import Mapping
from typing import Any

import torch

from attnfuzz.kernels.functions.function_backend import Keywords, unread
from attnfuzz.kernels.interface.backend import Bench, Fill, Graph, Op
from attnfuzz.kernels.sparse.forward import Forward
from attnfuzz.kernels.sparse.inputs import OpInputs, graph_of
from attnfuzz.kernels.sparse.results import SparseResult
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import SparseCase

_Tensors = dict[str, torch.Tensor]


class ChainSession:
    """Runs the ops of a case. Planted defects override a method.

    `ops` are those of the backend by their names in `attnfuzz.kernels.sparse.backend`. `noise` is the model of its
    scores, `can` its capability.
    """

    def __init__(
        self, case: SparseCase, bench: Bench, ops: Mapping[str, Op], noise: NoiseModel, can: SparseCapability
    ) -> None:
        self._case, self._bench, self._ops, self._noise, self._can = case, bench, ops, noise, can
        self._static: dict[tuple[object, str], _Tensors] = {}
        self._graphs: dict[tuple[object, str], Graph] = {}
        self._pools: _Tensors = {}
        self._returned: dict[str, str] = {}
        self.before: _Tensors = {}

    def forward(self, index: int) -> SparseResult:
        """Run the ops of one step, each on right inputs."""
        self._returned = {}
        return SparseResult(tuple(Forward(self, OpInputs(self._case, index)).parts()), self._returned)

    def launch(self, inputs: OpInputs, name: str, given: Mapping[str, Any], outputs: Mapping[str, Any]) -> _Tensors:
        """Launch an op, or replay its graph. Returns its tensors; `before` has the earlier contents of its outputs.

        `given` has values of tensors, tensors of the pool, and scalars; `outputs` shapes and dtypes.
        """
        op = self._ops[name]
        taken = Keywords.of(op.function).select(given, given)
        wanted = Keywords.of(op.function).select(outputs, outputs)
        if not inputs.step.replayed:
            tensors = self._placed(taken, wanted)
            self.before = {each: tensors[each].clone() for each in wanted}
            returned = self._bench.launcher.launch(op, **{**taken, **tensors})
            for each in list(wanted)[:1]:
                self._returned[op.name] = unread(op.name, returned, tensors[each], each)
            return tensors
        key = (graph_of(inputs.step), name)
        if key not in self._graphs:
            self._static[key] = self._placed(taken, wanted)
            self.before_capture(op, {**taken, **self._static[key]})
            with self._bench.launcher.capture() as graph:
                self._bench.launcher.launch(op, **{**taken, **self._static[key]})
            self._graphs[key] = graph
        tensors = self._static[key]
        self.refresh(key, taken)
        for each in wanted:
            self._bench.memory.renew(tensors[each])
        self.before = {each: tensors[each].clone() for each in wanted}
        self._graphs[key].replay()
        return tensors

    def before_capture(self, op: Op, arguments: Mapping[str, Any]) -> None:
        """Prepare an op for its capture."""

    def refresh(self, key: tuple[object, str], taken: Mapping[str, Any]) -> None:
        """Write the inputs of a replay to the tensors of its graph."""
        for each, value in taken.items():
            if self._is_value(value):
                self._bench.memory.overwrite(self._static[key][each], value)

    def _is_value(self, value: object) -> bool:
        return isinstance(value, torch.Tensor) and not any(value is pool for pool in self._pools.values())

    def _placed(self, taken: Mapping[str, Any], wanted: Mapping[str, Any]) -> _Tensors:
        memory = self._bench.memory
        tensors = {
            name: memory.copy(name, value, stride=self._stride(name, value.shape))
            for name, value in taken.items()
            if self._is_value(value)
        }
        for name, (shape, dtype) in wanted.items():
            tensors[name] = memory.tensor(name, shape, dtype, stride=self._stride(name, shape), fill=Fill.OUTPUT)
        return tensors

    def _stride(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return strides with a gap between rows of lists, tables and scores."""
        gapped = self._case.gap and name in _GAPPED and len(shape) > 1
        return (shape[1] + self._case.gap, 1) if gapped else None

    def pool(self, name: str, content: torch.Tensor) -> torch.Tensor:
        """Return a tensor that all steps share, with this content."""
        if name not in self._pools:
            self._pools[name] = self._bench.memory.copy(name, content)
        else:
            self._bench.memory.overwrite(self._pools[name], content)
        return self._pools[name]

    def correct(self, tensor: torch.Tensor, right: torch.Tensor) -> None:
        """Put right contents into a tensor."""
        self._bench.memory.overwrite(tensor, right)

    @property
    def case(self) -> SparseCase:
        """The case."""
        return self._case

    @property
    def noise(self) -> NoiseModel:
        """The model of scores."""
        return self._noise

    def name_of(self, kind: str) -> str:
        """Return the name of the op of a kind."""
        return self._ops[kind].name

    @property
    def can(self) -> SparseCapability:
        """The capability of the backend."""
        return self._can


_GAPPED = frozenset({"block_table", "logits", "scores", "indices", "positions", "tables", "slots", "extra_indices"})
"""Tensors whose rows may have a gap between them."""
