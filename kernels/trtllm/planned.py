"""Multi-head attention by an object that is planned and run, like FlashInfer's wrappers, on the native kernels.

The object copies the lists of its plans into growing buffers and reads their front.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from attnfuzz.kernels.arguments.lives import Layer, Life
from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.interface.ops_table import OpsTable
from attnfuzz.kernels.interface.transfers import write
from attnfuzz.kernels.planning.packed_masks import packed_masks
from attnfuzz.kernels.planning.plan import BatchMetadata, Row
from attnfuzz.kernels.planning.queries import place_queries
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.workspace import NAN_BYTE
from attnfuzz.kernels.trtllm.masked import MaskedMhaSession
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.case import Case, Step, Workspace
from attnfuzz.reference.masks import applies

_LISTS: Final = ("seq_lens", "cum_seq_lens_q", "cum_seq_lens_kv", "block_tables")

LIFE: Final = (
    EarlierUse.PLANNED_ALIKE,
    EarlierUse.PLANNED_CUSTOM_MASK,
    EarlierUse.PLANNED_OTHER_SCALE,
    EarlierUse.PLANNED_OTHER_WINDOW,
    EarlierUse.PLANNED_FEWER,
    EarlierUse.PLANNED_MORE,
    EarlierUse.OVERWRITTEN,
    EarlierUse.RAN_BEFORE,
)
"""The earlier uses of the object."""

_WINDOW: Final = 3


class PlannedAttention:
    """An object that is planned for a batch, a layer and masks, by their arguments. Defects override a method."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._buffers: dict[str, torch.Tensor] = {}
        self.lists: dict[str, torch.Tensor] = {}
        self.numbers: dict[str, Any] = {}
        self.masks: dict[str, torch.Tensor] = {}

    def plan(self, batch: BatchMetadata, layer: Layer, masks: Mapping[str, torch.Tensor]) -> None:
        """Plan a batch. Without `masks` it is causal."""
        self.plan_batch(batch)
        self.plan_layer(layer)
        self.plan_masks(masks)

    def plan_batch(self, batch: BatchMetadata) -> None:
        """Keep the lists of a batch, and its sizes."""
        self.lists = {name: self.keep(name, getattr(batch, name)) for name in _LISTS}
        self.numbers |= {"batch_size": batch.batch, "max_q_len": batch.max_q_len, "max_kv_len": batch.max_kv_len}

    def plan_layer(self, layer: Layer) -> None:
        """Keep the numbers of a layer."""
        self.numbers |= layer

    def plan_masks(self, masks: Mapping[str, torch.Tensor]) -> None:
        """Keep the masks of a batch."""
        self.masks = {name: self.keep(name, values) for name, values in masks.items()}

    def keep(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Copy `values` to the front of a buffer, which is replaced if it is too small."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < values.numel():
            buffer = self._bench.memory.tensor(f"{name}_buf", (values.numel(),), values.dtype)
            self._buffers[name] = buffer
        front = buffer[: values.numel()].view(values.shape)
        write(front, values)
        return front

    def overwrite(self) -> None:
        """Fill the buffers with -1, over the remains of all plans."""
        for buffer in self._buffers.values():
            buffer.view(torch.uint8).fill_(NAN_BYTE)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of a launch that the plan determines."""
        return {**self.lists, **self.numbers, **self.masks}


class PlannedMhaSession(MaskedMhaSession):
    """A session with one object for each step if workspaces are FRESH, otherwise with one for all steps."""

    object_type: type[PlannedAttention] = PlannedAttention

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        super().__init__(ops, case, bench)
        self._kept: PlannedAttention | None = None

    def _attend(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> None:
        if self._kept is None or self._case.workspace is Workspace.FRESH:
            self._kept = self.object_type(self._bench)
        attention, layer = self._kept, self._layer(step)
        self._live(attention, step, layer)
        attention.plan(plan, layer, self.mask_arguments(step) if applies(self._case, step) else {})
        if EarlierUse.RAN_BEFORE in self._case.life:
            others = place_queries(self._case, self._bench, query.flip(-1))
            unused = Results.place(self._case, self._bench, len(query), prefix="another_")
            self._run(attention, step, plan, others, unused)
        self._run(attention, step, plan, query, results)

    def _layer(self, step: Step) -> dict[str, Any]:
        return {"window_left": self._case.geometry.window_left, **self._launched_scales(step)}

    def _live(self, attention: PlannedAttention, step: Step, layer: Layer) -> None:
        """Use the object for other plans."""
        rows = self._planned_rows(step)

        def plan(others: Sequence[Row], layer: Layer) -> None:
            numbers = {name: value for name, value in layer.items() if name != _MASKS}
            attention.plan(self._plan(others), numbers, layer.get(_MASKS, {}))

        life: Life[Row] = Life(
            rows=rows,
            layer=layer,
            plan=plan,
            others={
                EarlierUse.PLANNED_ALIKE: lambda layer: layer,
                EarlierUse.PLANNED_CUSTOM_MASK: partial(self._with_masks, rows),
                EarlierUse.PLANNED_OTHER_SCALE: lambda layer: {**layer, "bmm1_scale": 2 * layer["bmm1_scale"]},
                EarlierUse.PLANNED_OTHER_WINDOW: lambda layer: {
                    **layer,
                    "window_left": _WINDOW if layer["window_left"] < 0 else -1,
                },
            },
            actions={EarlierUse.OVERWRITTEN: attention.overwrite},
        )
        life.make(self._case.life)

    def _with_masks(self, rows: Sequence[Row], layer: Layer) -> Layer:
        drawn = [torch.arange(row.q_len * row.kv_len).remainder(3).bool() for row in rows]
        bits, starts = packed_masks([mask.view(row.q_len, row.kv_len) for mask, row in zip(drawn, rows, strict=True)])
        memory = self._bench.memory
        masks = {
            "packed_custom_mask": memory.copy("packed_custom_mask", bits),
            "mask_indptr": memory.copy("mask_indptr", starts),
        }
        return {**layer, _MASKS: masks}

    def _run(
        self, attention: PlannedAttention, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results
    ) -> None:
        """Launch the plan."""
        given = self._context_arguments(step, plan, self._arguments(step, plan, query, results))
        assert self._ops.masked_context is not None
        op = self._ops.masked_context if attention.masks else self._ops.context
        self._bench.launcher.launch(op, **{**given, **attention.arguments()})


_MASKS: Final = "masks"
