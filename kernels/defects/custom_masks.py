"""Defects in the masks that a server passes to a kernel: from the wrong step, for the wrong rows, or missing."""

from typing import Any

import torch

from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.defects.planting import DefectGroup
from attnfuzz.kernels.planning.packed_masks import masks_of_rows, packed_masks
from attnfuzz.kernels.planning.plan import BatchMetadata
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.trtllm.masked import MaskedMhaSession
from attnfuzz.reference.case import Step
from attnfuzz.reference.masks import applies
from attnfuzz.reference.mistake import Mistake

DEFECTS: list[Defect] = []

_MASKS = DefectGroup(DEFECTS, Layer.PLANNER, BugClass.CUSTOM_MASKS)


@_MASKS.add("custom_mask_kept", "FlashInfer PR #1028")
class KeepsMasks(MaskedMhaSession):
    """A causal step keeps the masks of the previous step, because they are not reset."""

    _kept: dict[str, Any] | None = None

    def mask_arguments(self, step: Step) -> dict[str, Any]:
        """Keep the masks for later steps."""
        self._kept = super().mask_arguments(step)
        return self._kept

    def _attend(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> None:
        if self._kept is None or applies(self._case, step) or self.uses_decode_kernel(step.mode):
            super()._attend(step, plan, query, results)
            return
        assert self._ops.masked_context is not None
        arguments = self._context_arguments(step, plan, self._arguments(step, plan, query, results))
        self._bench.launcher.launch(self._ops.masked_context, **arguments, **self._kept)


@_MASKS.add("custom_mask_padded_to_the_longest", "text-generation-inference PR #3324", Mistake.MASK_LAYOUT)
class PadsMasks(MaskedMhaSession):
    """Mask rows are padded to the longest request, but the kernel uses each request's own length."""

    def mask_arguments(self, step: Step) -> dict[str, Any]:
        """Return masks whose rows all have the same length."""
        masks = masks_of_rows(self._case, step, self._planned_rows(step))
        most = max(mask.shape[1] for mask in masks)
        bits, starts = packed_masks([torch.nn.functional.pad(mask, (0, most - mask.shape[1])) for mask in masks])
        memory = self._bench.memory
        return {
            "packed_custom_mask": memory.copy("packed_custom_mask", bits),
            "mask_indptr": memory.copy("mask_indptr", starts),
        }
