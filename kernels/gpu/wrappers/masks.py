"""The masks of a plan of FlashInfer's prefill wrappers, and the buffers of a graph for them.

A custom mask is a flat bool tensor, or packed bits; "causal" is "only effective when custom_mask is not provided"
(docstring of plan). A window applies as well (DefaultAttention's LogitsMask, attention/variants.cuh).
"""

from collections.abc import Sequence
from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Bench, Fill
from attnfuzz.kernels.planning.packed_masks import flat_masks, masks_of_rows, packed_masks
from attnfuzz.kernels.planning.plan import Row
from attnfuzz.reference.case import Case, Mask, Step
from attnfuzz.reference.masks import applies

PACKED = "packed_custom_mask"
"""The argument of a plan that stays in place: without a graph, the kernel reads it."""

BUFFERS = ("custom_mask_buf", "mask_indptr_buf")
"""The constructor's names for the buffers of a graph."""


def is_custom(case: Case, step: Step) -> bool:
    """Return whether a step has a custom mask: neither a causal nor a full one."""
    return case.mask is not Mask.FULL and applies(case, step)


def mask_arguments(case: Case, bench: Bench, step: Step, rows: Sequence[Row], *, packed: bool) -> dict[str, Any]:
    """Return the arguments of a plan for the masks of planned `rows`; none for a causal step."""
    if not applies(case, step):
        return {}
    if case.mask is Mask.FULL:
        return {"causal": False}
    masks = masks_of_rows(case, step, rows)
    if packed:
        return {PACKED: bench.memory.copy(PACKED, packed_masks(masks)[0])}
    flat = bench.memory.copy("custom_mask", flat_masks(masks).view(torch.uint8))
    return {"custom_mask": flat.view(torch.bool)}


def mask_buffers(bench: Bench, batches: Sequence[Sequence[Row]]) -> dict[str, torch.Tensor]:
    """Allocate buffers of a graph for the packed masks of the largest of several batches, of as many rows each."""
    most = max(sum(-(-row.q_len * row.kv_len // 8) for row in rows) for rows in batches)
    shapes = {"custom_mask_buf": (max(most, 1), torch.uint8), "mask_indptr_buf": (len(batches[0]) + 1, torch.int32)}
    return {name: bench.memory.tensor(name, (size,), dtype, fill=Fill.ZEROS) for name, (size, dtype) in shapes.items()}
