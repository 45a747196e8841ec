"""A session of steps on one pool of states."""

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from attnfuzz.kernels.functions.function_backend import unread
from attnfuzz.kernels.interface.backend import Bench, Fill, Graph
from attnfuzz.kernels.recurrent.backend import StateBackend, parameters
from attnfuzz.kernels.recurrent.result import StateResult, TouchedRow
from attnfuzz.reference.recurrent.case import PaddedRow, Stale, StateCase, StateMode, StateOp, StateRow, StateStep
from attnfuzz.reference.recurrent.values import NORM_EPSILON, CaseValues, StepInputs

_SPARE = 2
"""Slots of no request."""

_STALE = 3.0
"""The number in slots that no request has written."""

_SLOTS = frozenset({"slots", "target_slots", "draft_slots", "draft_targets"})
_MORE_COLUMNS = 2
"""Columns of a table of slots behind those of a list."""

_STRIDE_GAP = 16
"""Elements between the rows of strided inputs."""


@dataclass
class _Captured:
    """A graph with the tensors that it reads and writes."""

    arguments: dict[str, Any]
    graph: Graph | None = None


@dataclass
class _Lane:
    """The slots of a request: the current ones, and those to which its states move next."""

    slots: list[int]
    others: list[int]
    begun: bool = False

    def swap(self) -> None:
        """Go on in the other slots."""
        self.slots, self.others = self.others, self.slots


@dataclass(frozen=True)
class _Batch:
    """The metadata of a step, padding included."""

    starts: list[int]
    slots: list[list[int]]
    targets: list[list[int]]
    initial: list[bool]
    accepted: list[int]
    tokens: int
    touched: tuple[TouchedRow, ...] = field(default=())


class StateSession:
    """Runs a case: each step is one launch, which is captured and replayed if the step says so."""

    def __init__(self, backend: StateBackend, case: StateCase, bench: Bench) -> None:
        self._backend, self._case, self._bench = backend, case, bench
        self._values = CaseValues(case)
        self._lanes = self._placed_lanes()
        self._pool = self._placed_pool()
        self._weights = self._placed_weights()
        self._graphs: dict[tuple[StateMode, int], _Captured] = {}

    def forward(self, index: int) -> StateResult:
        """Run a step, and return its outputs with the pool before and after."""
        case, step = self._case, self._case.steps[index]
        batch = self._batch(step)
        self._prepare_slots(step)
        inputs = self._values.step(index, batch.tokens)
        op = self._backend.by_mode[step.mode]
        if step.replayed:
            captured = self._graph(step)
            self._refresh(captured.arguments, inputs, batch)
            arguments = captured.arguments
        else:
            arguments = self._arguments(inputs, batch)
        before, returned = self._pool.clone(), None
        if step.replayed:
            assert captured.graph is not None
            captured.graph.replay()
        else:
            taken = parameters(op.function)
            given = {name: each for name, each in arguments.items() if name in taken}
            returned = self._bench.launcher.launch(op, **given)
        for row in step.rows:
            lane = self._lanes[row.lane]
            # Without tokens, the next step may accept another number of them.
            lane.begun = lane.begun or bool(row.tokens)
            if case.move and row.tokens:
                lane.swap()
        return StateResult(
            case=case,
            mode=step.mode,
            inputs=inputs,
            values=self._values,
            out=arguments["out"],
            before=before,
            after=self._pool,
            rows=batch.touched,
            free=self._free(step),
            noise=self._backend.noise_of(step.mode, case.state_dtype),
            given=self._backend.capability.given,
            returned=unread(self._backend.name, returned, arguments["out"]),
        )

    # The pool

    def _placed_lanes(self) -> list[_Lane]:
        case = self._case
        count, each = case.lanes, case.slots_of_a_lane
        reserved = self._backend.capability.reserves_dummy or case.padded_row is not PaddedRow.NEGATIVE
        first = int(reserved)
        total = count * each * (2 if case.move else 1) + _SPARE
        slots = list(range(first, first + total))
        if case.scattered:
            random.Random(case.seed).shuffle(slots)
        self._total = first + total
        own = [slots[at * each : (at + 1) * each] for at in range(count * (2 if case.move else 1))]
        return [_Lane(own[lane], own[count + lane] if case.move else own[lane]) for lane in range(count)]

    def _placed_pool(self) -> torch.Tensor:
        case, memory = self._case, self._bench.memory
        shape = case.state_shape
        swapped = self._backend.capability.swapped
        if swapped:
            shape = (*shape[:-2], shape[-1], shape[-2])
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        whole = strides[0] * shape[0] + case.gap
        dtype = case.state_dtype.torch_dtype
        pool = memory.tensor("state", (self._total, *shape), dtype, stride=(whole, *strides), fill=Fill.POISON)
        memory.overwrite(pool, torch.full(pool.shape, self._stale, dtype=dtype))
        self._stored = pool
        return pool.transpose(-1, -2) if swapped else pool

    @property
    def _stale(self) -> float:
        return float("nan") if self._case.stale is Stale.NAN else _STALE

    def _prepare_slots(self, step: StateStep) -> None:
        """Write the states that earlier steps, which are not in the case, have left."""
        case, memory = self._case, self._bench.memory
        for row in step.rows:
            lane = self._lanes[row.lane]
            if not row.initial and lane.begun and case.stale is Stale.NAN:
                for slot in {*lane.slots, *lane.others}:
                    memory.overwrite(self._pool[slot], torch.full(case.state_shape, self._stale))
            if row.initial and not lane.begun:
                state = self._values.state(row.lane, row.accepted)
                if case.op is StateOp.CONV:
                    # Only the inputs that precede the next token are known to be there.
                    first = max(row.accepted - 1, 0)
                    part = slice(first, first + case.shape.width - 1)
                    memory.overwrite(self._pool[lane.slots[0]][:, part], state[:, part])
                else:
                    memory.overwrite(self._pool[lane.slots[self._column(step, row)]], state)

    def _column(self, step: StateStep, row: StateRow) -> int:
        """Return the column of the slot that a request's state is read from."""
        verifies = step.mode is StateMode.VERIFY and self._case.op is not StateOp.CONV
        return max(row.accepted - 1, 0) if verifies else 0

    def _free(self, step: StateStep) -> frozenset[int]:
        """Return the slots that may have any contents after the step: the dummy."""
        return frozenset({0}) if step.padding and self._case.padded_row is not PaddedRow.NEGATIVE else frozenset()

    # Metadata

    def _batch(self, step: StateStep) -> _Batch:
        case, starts = self._case, [0]
        touched = []
        for number, row in enumerate(step.rows):
            lane = self._lanes[row.lane]
            begin, target = starts[-1], lane.others if case.move else lane.slots
            starts.append(begin + row.tokens)
            keeps_all = step.mode is StateMode.VERIFY and case.op is not StateOp.CONV
            written = target[: row.tokens] if keeps_all else target[:1] if row.tokens else []
            touched.append(
                TouchedRow(
                    number=number,
                    tokens=slice(begin, begin + row.tokens),
                    read=lane.slots[self._column(step, row)] if row.initial else None,
                    written=tuple(written),
                    accepted=row.accepted,
                )
            )
        rows, padding = len(step.rows), 0 if step.mode is StateMode.PREFILL else step.padding
        pad = -1 if case.padded_row is PaddedRow.NEGATIVE else 0
        width = 0 if case.padded_row is PaddedRow.EMPTY else case.width_of(step.mode)
        for _ in range(padding):
            starts.append(starts[-1] + width)
        tokens = starts[-1] + (step.padding if step.mode is StateMode.PREFILL else 0)
        if step.replayed:
            tokens = (rows + padding) * case.width_of(step.mode)
        pads = [[pad] * case.slots_of_a_lane] * padding
        lanes = [self._lanes[row.lane] for row in step.rows]
        return _Batch(
            starts=starts,
            slots=[each.slots for each in lanes] + pads,
            targets=[each.others if case.move else each.slots for each in lanes] + pads,
            initial=[row.initial for row in step.rows] + [True] * padding,
            accepted=[row.accepted for row in step.rows] + [1] * padding,
            tokens=tokens,
            touched=tuple(touched),
        )

    def _metadata(self, batch: _Batch) -> dict[str, torch.Tensor]:
        each = self._case.slots_of_a_lane
        slots, targets = (
            torch.tensor(table, dtype=torch.int32).view(-1, each) for table in (batch.slots, batch.targets)
        )
        return {
            "slots": slots[:, 0].contiguous(),
            "target_slots": targets[:, 0].contiguous(),
            "draft_slots": slots,
            "draft_targets": targets,
            "cu_seqlens": torch.tensor(batch.starts, dtype=torch.int32),
            "has_initial_state": torch.tensor(batch.initial, dtype=torch.bool),
            "num_accepted": torch.tensor(batch.accepted, dtype=torch.int32),
        }

    # Arguments

    def _contents(self, inputs: StepInputs) -> dict[str, torch.Tensor]:
        """Return the contents of the inputs by the names of arguments."""
        case = self._case
        if case.op is StateOp.CONV:
            return {"x": inputs.value[:, 0]}
        if case.op.is_ssm:
            found = {"x": inputs.value, "dt": inputs.raw_decay, "B": inputs.key, "C": inputs.query}
            return {**found, "z": inputs.gate} if case.gated else found
        found = {"query": inputs.query, "key": inputs.key, "value": inputs.value}
        if case.op is StateOp.DECAY:
            return found
        if self._backend.capability.given:
            return {**found, "log_decay": self._values.given_decay(inputs), "beta": self._values.given_beta(inputs)}
        return {**found, "a": inputs.raw_decay, "b": inputs.raw_beta}

    def _placed_weights(self) -> dict[str, Any]:
        case, memory, weights = self._case, self._bench.memory, self._values.weights
        scalars = {"scale": self._values.scale, "normed": case.normed, "eps": NORM_EPSILON}
        if case.op is StateOp.CONV:
            bias = memory.copy("bias", weights.bias) if case.biased else None
            return {"weight": memory.copy("weight", weights.taps), "bias": bias, "activated": case.activated}
        if case.op.is_ssm:
            found: dict[str, Any] = {"A": weights.a, **self._parameters_of_steps()}
            scalars |= {"softplus": not case.no_softplus}
        elif case.op is StateOp.DECAY:
            found = {"slope": weights.slope}
        else:
            found = {"A_log": self._narrowed(weights.a_log), "dt_bias": weights.dt_bias.to(case.dtype.torch_dtype)}
            if self._backend.capability.given:
                found = {}
        placed = {name: each if each is None else memory.copy(name, each) for name, each in found.items()}
        return {**placed, "z": None, **scalars} if case.op.is_ssm else {**placed, **scalars}

    def _parameters_of_steps(self) -> dict[str, torch.Tensor | None]:
        """Return Mamba's D and the bias of its steps, None where a layer has none."""
        case, weights = self._case, self._values.weights
        return {
            "D": None if case.no_skip else self._narrowed(weights.d),
            "dt_bias": None if case.no_step_bias else self._narrowed(weights.dt_bias),
        }

    def _narrowed(self, parameter: torch.Tensor) -> torch.Tensor:
        return parameter.to(self._case.dtype.torch_dtype) if self._case.narrow else parameter

    def _placed(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Place an input, as a part of wider rows or with its tokens innermost if the case says so."""
        memory = self._bench.memory
        if self._case.transposed and value.dim() >= 2 and value.numel():
            tokens = len(value)
            inner = [tokens]
            for size in reversed(value.shape[2:]):
                inner.insert(0, inner[0] * size)
            return memory.copy(name, value, stride=(1, *inner))
        if not self._case.strided or value.dim() < 2 or not value.numel():
            return memory.copy(name, value)
        inner = [1]
        for size in reversed(value.shape[2:]):
            inner.insert(0, inner[0] * size)
        return memory.copy(name, value, stride=(inner[0] * value.shape[1] + _STRIDE_GAP, *inner))

    def _arguments(self, inputs: StepInputs, batch: _Batch) -> dict[str, Any]:
        case, memory = self._case, self._bench.memory
        shape = (case.shape.value_dim,) if case.op is StateOp.CONV else (case.shape.value_heads, case.shape.value_dim)
        placed = {name: self._placed(name, each) for name, each in self._contents(inputs).items()}
        metadata = {name: self._placed_list(name, each) for name, each in self._metadata(batch).items()}
        out = memory.tensor("out", (batch.tokens, *shape), case.dtype.torch_dtype, fill=Fill.OUTPUT)
        state = self._pool if case.op is StateOp.CONV else self._stored
        return {**self._weights, **placed, **metadata, "state": state, "out": out}

    def _placed_list(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """Place metadata: a list or table of slots as columns of a wider table if the case says so."""
        memory = self._bench.memory
        if not self._case.columns or name not in _SLOTS or not value.numel():
            return memory.copy(name, value)
        inner = value.shape[1] if value.dim() > 1 else 1
        return memory.copy(name, value, stride=(inner + _MORE_COLUMNS, *(1,) * (value.dim() - 1)))

    # Graphs

    def _graph(self, step: StateStep) -> _Captured:
        """Return the graph of a step's batch, captured with padding alone when it is first needed."""
        rows = len(step.rows) + step.padding
        if (step.mode, rows) not in self._graphs:
            alone = StateStep(mode=step.mode, rows=(), padding=rows, replayed=True)
            batch = self._batch(alone)
            captured = _Captured(self._arguments(self._values.step(-1 - rows, batch.tokens), batch))
            op = self._backend.by_mode[step.mode]
            taken = parameters(op.function)
            with self._bench.launcher.capture() as captured.graph:
                kept = {name: each for name, each in captured.arguments.items() if name in taken}
                self._bench.launcher.launch(op, **kept)
            self._graphs[step.mode, rows] = captured
        return self._graphs[step.mode, rows]

    def _refresh(self, arguments: dict[str, Any], inputs: StepInputs, batch: _Batch) -> None:
        """Write a batch into the tensors of a graph, and restore its outputs."""
        memory = self._bench.memory
        for name, value in {**self._contents(inputs), **self._metadata(batch)}.items():
            memory.overwrite(arguments[name], value)
        memory.renew(arguments["out"])
