"""A case of recurrent state on a release: each step is planned by its model runner and metadata builder."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.recurrent.result import StateResult, TouchedRow
from attnfuzz.kernels.recurrent.session import StateSession
from attnfuzz.kernels.releases.answers import ASKED
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow, code_of
from attnfuzz.kernels.releases.rejection import rejections_of
from attnfuzz.kernels.vllm.adaptations import PINNED
from attnfuzz.kernels.vllm.runner import WORDS
from attnfuzz.kernels.vllm.server import REMEDY
from attnfuzz.kernels.vllm.states.aligned import AlignedBlocks
from attnfuzz.kernels.vllm.states.demands import Demands
from attnfuzz.kernels.vllm.states.imports import complete
from attnfuzz.kernels.vllm.states.kinds import StateKind
from attnfuzz.kernels.vllm.states.layers import FORWARDS, StateLayer
from attnfuzz.kernels.vllm.states.pool import LanePool
from attnfuzz.kernels.vllm.states.runner import StateRunner
from attnfuzz.reference.recurrent.case import Stale, StateCase, StateOp
from attnfuzz.reference.recurrent.values import StepInputs

_NULL_BLOCK: Final = 0
"""The block of padding, which no request owns (v1/attention/backends/utils.py, NULL_BLOCK_ID)."""


class PlannedStateSession(StateSession):
    """Runs a case below a release: the pool, its states and the judgement are those of `StateSession`."""

    def __init__(self, backend: Any, loaded: Any, kind: StateKind, case: StateCase, bench: Bench) -> None:
        self._demands = Demands.of(case)
        self._aligned = AlignedBlocks(case, self._demands) if case.move else None
        super().__init__(backend, case, bench)
        self._loaded, self._kind = loaded, kind
        self._running = code_of(loaded.release, bench, KernelsBelow(tuple(kind.kernels.by_mode.values())))
        self.dtype = case.dtype.torch_dtype
        heads = () if case.op is StateOp.CONV else (case.shape.value_heads,)
        self.out_shape = (*heads, case.shape.value_dim)
        self.layer = StateLayer(kind.kernels, self._weights, self._pool)
        self.run_layer = FORWARDS[backend.named.kind]
        with self._running():
            self._runner = self._started()

    def _started(self) -> StateRunner:
        """Start the server, and capture its graphs."""
        release = self._loaded.release
        ASKED.watch(release.root, release.project.title, release.version, PINNED, REMEDY)
        self._loaded.listen(ASKED.note)
        complete(self._loaded)
        aligned, demands = self._aligned, self._demands
        if aligned is None:
            tables = {sequence: self._lanes[lane].slots for sequence, lane in demands.lanes.items()}
            pool = LanePool(demands, tables, self._total, lambda _: self._case.slots_of_a_lane)
        else:
            pool = LanePool(demands, aligned.tables(), self._total, aligned.columns)
        server = SimpleNamespace(
            loaded=self._loaded,
            case=self._demands.case,
            bench=self._bench,
            pool=pool,
            sinks=None,
            session=self,
        )
        runner = StateRunner(server, self._case, self._demands, self._kind)
        runner.capture_all()
        return runner

    def forward(self, index: int) -> StateResult:
        """Run a step, and return its outputs with the pool before and after."""
        case, step = self._case, self._case.steps[index]
        touched = self._touched(index)
        before = self._pool.clone()
        demand = self._demands.case.steps[index]
        with rejections_of(self._loaded.release), self._running():
            self._bench.launcher.reached_by(WORDS[demand.launch])
            out, first_rows = self._runner.run(index, demand.requests)
        ASKED.check()
        for row in step.rows:
            lane = self._lanes[row.lane]
            lane.begun = lane.begun or bool(row.tokens)
        begins = iter(first_rows)
        rows = [
            replace(each, tokens=slice(first, first + row.tokens))
            for each, row in zip(touched, step.rows, strict=True)
            for first in ([next(begins)] if row.tokens else [0])
        ]
        inputs = self._runner.model.inputs
        assert inputs is not None
        return StateResult(
            case=case,
            mode=step.mode,
            inputs=inputs,
            values=self._values,
            out=out,
            before=before,
            after=self._pool,
            rows=tuple(rows),
            free=frozenset({_NULL_BLOCK}),
            noise=self._backend.noise_of(step.mode, case.state_dtype),
            given=False,
        )

    def _placed_lanes(self) -> Any:
        lanes = super()._placed_lanes()
        if self._aligned is not None:
            self._total = self._aligned.blocks
        return lanes

    def _touched(self, index: int) -> tuple[TouchedRow, ...]:
        """Return the slots of a step's requests, after writing the states that they begin with."""
        step = self._case.steps[index]
        touched = self._batch(step).touched
        if self._aligned is None:
            self._prepare_slots(step)
            return touched
        memory, found = self._bench.memory, []
        for row, each, blocks in zip(step.rows, touched, self._aligned.steps[index], strict=True):
            if not row.initial and self._lanes[row.lane].begun and self._case.stale is Stale.NAN:
                for slot in self._aligned.of_lane[row.lane]:
                    memory.overwrite(self._pool[slot], torch.full(self._case.state_shape, self._stale))
            if blocks.begins:
                memory.overwrite(self._pool[blocks.read], self._values.state(row.lane, row.accepted))
            found.append(replace(each, read=blocks.read, written=blocks.written, committed=blocks.committed))
        return tuple(found)

    def draw(self, index: int, tokens: int) -> StepInputs:
        """Return the inputs of a step's tokens."""
        return self._values.step(index, tokens)

    def contents(self, inputs: StepInputs) -> dict[str, torch.Tensor]:
        """Return the inputs of a forward by the names of the kernels' arguments."""
        return self._contents(inputs)

    def place(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Place these inputs."""
        return {name: self._placed(name, each) for name, each in inputs.items()}
