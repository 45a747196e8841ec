"""Defects in the masks that a server passes to a kernel: from the wrong step, for the wrong rows, or missing."""

from abc import ABC, abstractmethod
from typing import Any

import torch

from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.defects.planting import DefectGroup
from attnfuzz.kernels.planning.packed_masks import masks_of_rows, packed_masks
from attnfuzz.kernels.planning.plan import BatchMetadata, Row
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


class _OtherChunks(MaskedMhaSession, ABC):
    """A layer with chunks of attention, and a mistake in the mask of each request."""

    def mask_arguments(self, step: Step) -> dict[str, Any]:
        """Pack the masks with the mistake."""
        chunk = self._case.geometry.attention_chunk
        if not chunk:
            return super().mask_arguments(step)
        masks = []
        for row in self._planned_rows(step):
            own, key = torch.arange(row.kv_len - row.q_len, row.kv_len).unsqueeze(1), torch.arange(row.kv_len)
            masks.append((key <= own) & self.in_chunk(key, own, row, chunk))
        bits, starts = packed_masks(masks)
        memory = self._bench.memory
        return {
            "packed_custom_mask": memory.copy("packed_custom_mask", bits),
            "mask_indptr": memory.copy("mask_indptr", starts),
        }

    @abstractmethod
    def in_chunk(self, key: torch.Tensor, own: torch.Tensor, row: Row, chunk: int) -> torch.Tensor:
        """Return which keys [kv_len] are in the chunk of the queries with these positions [q_len, 1]."""


_CHUNKS = "transformers issue #37351: the mask of Llama 4's chunks with a cache"


@_MASKS.add("attention_chunks_from_the_first_query", _CHUNKS, Mistake.KEYS_MISSING)
class CountsChunksFromTheFirstQuery(_OtherChunks):
    """Chunks begin at a request's first new token instead of its first key."""

    def in_chunk(self, key: torch.Tensor, own: torch.Tensor, row: Row, chunk: int) -> torch.Tensor:
        """Count both from the first query."""
        first = row.kv_len - row.q_len
        return (key - first) // chunk == (own - first) // chunk


@_MASKS.add("attention_chunk_as_a_window", "SGLang PR #5092: Llama 4's attention_chunk_size")
class SlidesChunks(_OtherChunks):
    """A query sees as many keys before its own as a chunk has, in whichever chunk they are."""

    def in_chunk(self, key: torch.Tensor, own: torch.Tensor, row: Row, chunk: int) -> torch.Tensor:
        """Slide a window of a chunk's length."""
        return key > own - chunk
