"""A case of recurrent state on a release: each step is planned, padded, run and committed by its own code.

A file and line below sglang/srt/ is that of SGLang 0.5.23 unless another version is named.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Bench, Fill
from attnfuzz.kernels.recurrent.result import StateResult, TouchedRow
from attnfuzz.kernels.recurrent.session import StateSession
from attnfuzz.kernels.releases.answers import ASKED
from attnfuzz.kernels.releases.entry_points_below import KernelsBelow, code_of
from attnfuzz.kernels.releases.rejection import rejections_of
from attnfuzz.kernels.releases.state_inputs import StateInputs
from attnfuzz.kernels.sglang.batch import batch_of, count_tokens_of_ranks, pad
from attnfuzz.kernels.sglang.graphs import ServedGraphs
from attnfuzz.kernels.sglang.kinds import KINDS
from attnfuzz.kernels.sglang.orders import GraphPlanner, Preparation, orders_of
from attnfuzz.kernels.sglang.stand_ins import replace_calls
from attnfuzz.kernels.sglang.states.commits import commit
from attnfuzz.kernels.sglang.states.kinds import LinearKind
from attnfuzz.kernels.sglang.states.layers import layer_of
from attnfuzz.kernels.sglang.states.pool import SlotRequest, StatePools, cleared, hand_out, kept_inputs
from attnfuzz.kernels.sglang.states.server import StateServer
from attnfuzz.kernels.sglang.states.steps import ServedSteps
from attnfuzz.reference.case import Launch, Step
from attnfuzz.reference.recurrent.case import Stale, StateCase, StateMode, StateOp, StateRow, StateStep
from attnfuzz.reference.recurrent.values import StepInputs

_DUMMY: Final = 0
"""The slot of padding, which no request owns (mem_cache/memory_pool.py, MambaSlotAllocator)."""

_CLEARING: Final = "_maybe_execute_deferred_mamba_cow_and_clear"
"""ModelRunner's method that clears slots, from 0.5.16 on; before, metadata did it, or handing the slot out."""


class _StateGraphs(ServedGraphs):
    """The graphs of a session, whose captures have the inputs that `inputs` makes for a number of rows."""

    def __init__(self, server: StateServer, planner: GraphPlanner, inputs: Callable[[int], StateInputs]) -> None:
        super().__init__(server, planner)
        self._made = inputs

    def _inputs(self, step: Step, rows: int) -> StateInputs:
        del step
        return self._made(rows)


class SglangStateSession(StateSession):
    """Runs a case below a release. The pool's states are those of requests, followed by those of drafts."""

    def __init__(self, backend: Any, loaded: Any, kind: LinearKind, case: StateCase, bench: Bench) -> None:
        self._kind, self._steps = kind, ServedSteps.of(case)
        self._scratch: torch.Tensor | None = None
        self._rows_of_drafts = 0
        super().__init__(backend, case, bench)
        self._loaded = replace(loaded, kind=KINDS["triton"])
        self._orders = orders_of(loaded.release.version)
        self._running = code_of(loaded.release, bench, KernelsBelow(tuple(kind.kernels.by_mode.values())))
        self._requests: dict[int, SlotRequest] = {}
        replace_calls()
        with self._running():
            self._start()

    def _start(self) -> None:
        """Start the server, and capture its graphs."""
        self._server = StateServer(self._loaded, self._steps.case, self._bench, self._case, self._kind, self._pools_of)
        self._layer, self._kernels = layer_of(self._server, self._weights, self._whole, self._total)
        self._kernels.install()
        self._served = _StateGraphs(self._server, self._orders.planner, self._captured_inputs)
        for index in range(self._steps.captures):
            with self._server.forwarding():
                self._served.capture(self._server.backend, index, self._attend)

    def _captured_inputs(self, rows: int) -> StateInputs:
        return self._placed_inputs(self._values.step(-1 - rows, rows))

    # The pool

    def _placed_pool(self) -> torch.Tensor:
        """Return the pool of requests. States of drafts follow it in the same memory, those of a convolution do not."""
        case = self._case
        # As many slots as there are requests, as on a server, and the dummy.
        rows = max(len(self._steps.lanes), *(step.padded_batch for step in self._steps.case.steps)) + 1
        self._total = max(self._total, rows + 2)
        shape = case.state_shape
        drafts = 0
        if case.op is StateOp.CONV:
            shape = (shape[0], case.shape.width - 1)
        elif case.drafts:
            self._rows_of_drafts = rows + 1
            drafts = self._rows_of_drafts * (case.drafts + 1)
        dtype = case.state_dtype.torch_dtype
        memory = self._bench.memory
        self._whole = memory.tensor("state", (self._total + drafts, *shape), dtype, fill=Fill.POISON)
        memory.overwrite(self._whole, torch.full(self._whole.shape, self._stale, dtype=dtype))
        pool = self._whole[: self._total]
        self._stored = pool
        return pool

    def _pools_of(self, rows: int) -> StatePools:
        """Return the states of a server of up to `rows` requests."""
        drafts = None
        if self._rows_of_drafts:
            end = self._total + (rows + 1) * (self._case.drafts + 1)
            drafts = self._whole[self._total : end].view(rows + 1, self._case.drafts + 1, *self._case.state_shape)
        return StatePools(self._pool, drafts)

    def _contents_of_pool(self) -> torch.Tensor:
        """Return a copy of all states: of requests, and of drafts."""
        if self._case.op is not StateOp.CONV:
            return self._whole.clone()
        shape = (self._total, *self._case.state_shape)
        own = torch.zeros(shape, dtype=self._pool.dtype)
        own[:, :, : self._pool.shape[-1]] = self._pool
        if not self._case.drafts:
            return own
        return torch.cat((own, kept_inputs(self._server.model_runner.req_to_token_pool, self._kind)))

    # Requests

    def _go_on(self, index: int) -> None:
        """Prepare the slots of a step: those of requests that earlier steps, not in the case, began, and stale ones."""
        memory = self._bench.memory
        for sequence, row in self._rows(index):
            slot = self._pool[self._lanes[row.lane].slots[0]]
            if row.initial and sequence not in self._requests:
                self._admit(sequence, row)
                state = self._values.state(row.lane, row.accepted)
                if self._case.op is StateOp.CONV:
                    first = max(row.accepted - 1, 0)
                    state = state[:, first : first + slot.shape[-1]]
                memory.overwrite(slot, state)
            elif not row.initial and self._lanes[row.lane].begun and self._case.stale is Stale.NAN:
                memory.overwrite(slot, torch.full(slot.shape, self._stale))

    def _begin(self, index: int) -> list[SlotRequest]:
        """Give new requests of a step their slots. Returns those whose slots are to be cleared before the forward."""
        new = [self._admit(sequence, row) for sequence, row in self._rows(index) if not row.initial]
        return [each for each in new if cleared(each)]

    def _admit(self, sequence: int, row: StateRow) -> SlotRequest:
        request = self._requests[sequence] = SlotRequest(self._server.rows.of[sequence])
        hand_out(self._server.model_runner.req_to_token_pool, request, self._lanes[row.lane].slots[0])
        return request

    def _rows(self, index: int) -> list[tuple[int, StateRow]]:
        """Return the sequences of a step's rows, with these."""
        sequences = (request.slot for request in self._step(index).requests)
        return list(zip(sequences, self._case.steps[index].rows, strict=True))

    def _step(self, index: int) -> Step:
        return self._steps.case.steps[self._steps.captures + index]

    # A step

    def forward(self, index: int) -> StateResult:
        """Run a step and commit its accepted drafts. Returns its outputs, with the states before and after."""
        case, step = self._case, self._case.steps[index]
        with rejections_of(self._loaded.release), self._running():
            self._kernels.install()
            self._go_on(index)
            before = self._contents_of_pool()
            out, inputs, starts = self._run(index, self._begin(index))
        ASKED.check()
        for row in step.rows:
            self._lanes[row.lane].begun = True
        return StateResult(
            case=case,
            mode=step.mode,
            inputs=inputs,
            values=self._values,
            out=out,
            before=before,
            after=self._contents_of_pool(),
            rows=tuple(self._touched(index, starts)),
            free=self._free_slots(step),
            noise=self._backend.noise_of(step.mode, case.state_dtype),
            given=False,
        )

    def _run(self, index: int, clears: list[SlotRequest]) -> tuple[torch.Tensor, StepInputs, list[int]]:
        """Run a step. Returns its outputs, the inputs, and the first token of each request."""
        server, step = self._server, self._step(index)
        server.prepare_step(step)
        batch = batch_of(server, step)
        self._complete(batch, step, clears)
        backend = server.backend
        with server.forwarding():
            if step.launch is Launch.REPLAY:
                self._bench.launcher.reached_by(self._orders.graphs[step.mode].words())
                drawn = self._values.step(index, step.padded_tokens)
                _, out = self._served.replay(backend, batch, step, self._placed_inputs(drawn))
            else:
                self._plan(backend, batch, step)
                drawn = self._values.step(index, batch.input_ids.shape[0])
                out = self._attend(backend, batch, self._placed_inputs(drawn))
            if self._case.steps[index].mode is StateMode.VERIFY and step.requests:
                commit(server, batch, self._accepted(index), step.tokens_per_request)
        starts, first = [], 0
        for request in step.requests:
            starts.append(first)
            first += request.q_len
        return out, drawn, starts

    def _plan(self, backend: Any, batch: Any, step: Step) -> None:
        """Prepare an eager batch in the order of the release's workers."""
        orders = self._orders.eager[step.mode]
        order = orders[self._case.seed % len(orders)]
        self._bench.launcher.reached_by(order.words(padded=step.padded))
        if step.padded:
            count_tokens_of_ranks(self._server, batch, step)
        for event, _ in order.events:
            if event is Preparation.PLAN:
                backend.init_forward_metadata(batch)
            elif step.padded:
                pad(self._server, batch)

    def _complete(self, batch: Any, step: Step, clears: list[SlotRequest]) -> None:
        """Set the fields of a batch that concern states, as its init_new does, and clear slots before the forward."""
        known = type(batch).__dataclass_fields__
        for name in ("num_token_non_padded_cpu", "global_num_token_non_padded_cpu"):
            if name in known:
                setattr(batch, name, step.tokens)
        if not step.requests and step.launch is Launch.EAGER:
            info = self._loaded.module("sglang.srt.model_executor.forward_batch_info")
            batch.forward_mode = info.ForwardMode.IDLE
        if clears and "mamba_clear_indices" in known:
            slots = [each.mamba_pool_idx for each in clears if each.mamba_pool_idx is not None]
            batch.mamba_clear_indices = torch.stack(slots)
        runner = self._loaded.module("sglang.srt.model_executor.model_runner").ModelRunner
        if hasattr(runner, _CLEARING):
            getattr(runner, _CLEARING)(self._server.model_runner, batch)

    def _attend(self, backend: Any, batch: Any, inputs: StateInputs) -> torch.Tensor:
        """Run the layer. Returns its outputs, or those of its convolution."""
        del backend
        if not self._kind.convolves:
            return self._layer.forward(batch, inputs.tensors)
        rows = next(iter(inputs.tensors.values())).shape[0]
        convolved = self._kernels.convolved = torch.empty(
            rows, self._case.shape.value_dim, dtype=self._case.dtype.torch_dtype
        )
        self._layer.forward(batch, inputs.tensors)
        return convolved

    def _placed_inputs(self, drawn: StepInputs) -> StateInputs:
        """Place the inputs of a forward by the names of the layer's arguments."""
        parts = self._layer.inputs(self._contents(drawn))
        return StateInputs({name: self._placed(name, each) for name, each in parts.items()})

    # Results

    def _accepted(self, index: int) -> list[int]:
        """Return the number of tokens of a verify that each request accepts: 1 unless its next step says more."""
        found = []
        for row in self._case.steps[index].rows:
            later = (each for step in self._case.steps[index + 1 :] for each in step.rows if each.lane == row.lane)
            following: StateRow | None = next(later, None)
            found.append(1 if following is None or not following.initial else following.accepted)
        return found

    def _touched(self, index: int, starts: list[int]) -> list[TouchedRow]:
        step = self._case.steps[index]
        verifies = step.mode is StateMode.VERIFY
        accepted = self._accepted(index) if verifies else [1] * len(step.rows)
        touched = []
        for number, (row, first, count) in enumerate(zip(step.rows, starts, accepted, strict=True)):
            slot = self._lanes[row.lane].slots[0]
            touched.append(
                TouchedRow(
                    number=number,
                    tokens=slice(first, first + row.tokens),
                    read=slot if row.initial else None,
                    written=self._slots_of_drafts(number) if verifies else (slot,),
                    accepted=1,
                    committed=((slot, count),) if verifies else (),
                )
            )
        return touched

    def _slots_of_drafts(self, row: int) -> tuple[int, ...]:
        """Return the slots of the states of a verify's row in the contents of the pool."""
        if self._case.op is StateOp.CONV:
            return (self._total + row,)
        width = self._case.drafts + 1
        first = self._total + row * width
        return tuple(range(first, first + width))

    def _free_slots(self, step: StateStep) -> frozenset[int]:
        """Return the slots that may have any contents after a step: the dummy, and drafts of no request."""
        rows = len(step.rows) if step.mode is StateMode.VERIFY else 0
        slots = (self._slots_of_drafts(row) for row in range(rows, self._most_rows)) if self._case.drafts else ()
        return frozenset({_DUMMY, *(slot for each in slots for slot in each)})

    @property
    def _most_rows(self) -> int:
        """The rows that the release has for drafts."""
        cache = self._server.model_runner.req_to_token_pool.mamba_pool.mamba_cache
        rows: int = cache.intermediate_ssm.shape[1]
        return rows
