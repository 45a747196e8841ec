"""Defects of an object that is planned and then run: a new plan keeps part of the previous one."""

from collections.abc import Mapping
from typing import Any

import torch

from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.defects.planting import DefectGroup
from attnfuzz.kernels.planning.plan import BatchMetadata
from attnfuzz.kernels.trtllm.planned import PlannedAttention
from attnfuzz.reference.mistake import Mistake

DEFECTS: list[Defect] = []

_KEPT = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.KEPT_BY_AN_OBJECT)


@_KEPT.add("planned_mask_kept", "FlashInfer PR #2690 (the ragged wrapper)", Mistake.MASK_LAYOUT, Mistake.NO_KEYS)
class KeepsPlannedMasks(PlannedAttention):
    """A plan without masks keeps those of the previous plan."""

    def plan_masks(self, masks: Mapping[str, torch.Tensor]) -> None:
        """Plan masks if there are any."""
        if masks:
            super().plan_masks(masks)


@_KEPT.add(
    "planned_window_kept",
    "SGLang PR #31501 (a window on some paths only)",
    Mistake.GIVEN_WINDOW,
    Mistake.WINDOW,
    Mistake.KEYS_MISSING,
)
class KeepsPlannedWindow(PlannedAttention):
    """A plan without a window keeps that of the previous plan."""

    def plan_layer(self, layer: Mapping[str, Any]) -> None:
        """Plan a window if there is one."""
        before = self.numbers.get("window_left", -1)
        super().plan_layer(layer)
        if layer["window_left"] < 0:
            self.numbers["window_left"] = before


@_KEPT.add("planned_scale_kept", "vLLM PR #42580 (scales read by the kernel)", Mistake.GIVEN_SCALE, Mistake.LOGIT_SCALE)
class KeepsPlannedScale(PlannedAttention):
    """The softmax scale remains that of the first plan."""

    def plan_layer(self, layer: Mapping[str, Any]) -> None:
        """Plan a layer, but keep the scale of the first one."""
        before = self.numbers.get("bmm1_scale", layer["bmm1_scale"])
        super().plan_layer({**layer, "bmm1_scale": before})


@_KEPT.add("planned_batch_kept", "SGLang PR #15227 (metadata of the batch before)", Mistake.GIVEN_LENGTH)
class KeepsPlannedBatch(PlannedAttention):
    """A plan for a smaller batch keeps the lists of the previous plan."""

    def plan_batch(self, batch: BatchMetadata) -> None:
        """Plan a batch unless it is smaller than the previous one."""
        if batch.batch >= self.numbers.get("batch_size", 0):
            super().plan_batch(batch)


@_KEPT.add("planned_lists_not_written", "rtp-llm PR #1254 (plans again only where the topology of pages changes)")
class WritesChangedListsAlone(PlannedAttention):
    """A list equal to that of the previous plan is not written again, though its buffer may have been overwritten."""

    def keep(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """Write only values that have changed."""
        written = self.__dict__.setdefault("_written", {})
        before = written.get(name)
        if before is None or not torch.equal(before, values):
            written[name] = values.clone()
            return super().keep(name, values)
        return self._buffers[name][: values.numel()].view(values.shape)
