"""Multi-head attention of layers that are not causal: a window to both sides, or an interval of keys for each query.

Encoders and bidirectional layers run this way, and the prefill of images, whose tokens see each other (Gemma 3 and 4).
Causal steps are launched as they are without these masks; all others on the context kernel.
"""

from collections.abc import Sequence
from typing import Any

import torch

from attnfuzz.kernels.planning.lengths import int32
from attnfuzz.kernels.planning.packed_masks import masks_of_rows
from attnfuzz.kernels.planning.plan import BatchMetadata
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.reference.case import Mask, Step
from attnfuzz.reference.masks import applies


class WindowedMhaSession(MhaSession):
    """A server's attention layer whose steps may not be causal. These are eager."""

    def _attend(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> None:
        if not applies(self._case, step):
            super()._attend(step, plan, query, results)
            return
        arguments = self._context_arguments(step, plan, self._arguments(step, plan, query, results))
        self._bench.launcher.launch(self._ops.context, **arguments, **self._seen(step))

    def _seen(self, step: Step) -> dict[str, Any]:
        """Return the arguments that determine the keys that a query sees, besides its window to the left."""
        if self._case.mask is Mask.FULL:
            return {"causal": False, "window_right": self._case.geometry.window_right}
        first, last = intervals(masks_of_rows(self._case, step, self._planned_rows(step)), step.padded_tokens)
        copy = self._bench.memory.copy
        return {
            "variable_window_token_starts": copy("variable_window_token_starts", first),
            "variable_window_token_ends": copy("variable_window_token_ends", last),
        }


def intervals(masks: Sequence[torch.Tensor], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first and the last key of each query, int32 [rows], from masks whose rows are intervals of keys.

    A query without keys has 0 and -1, and so have rows that belong to no request.
    """
    first, last = torch.zeros(rows), torch.full((rows,), -1)
    at = 0
    for mask in masks:
        for row in mask:
            keys = row.nonzero().flatten()
            if len(keys):
                first[at], last[at] = keys[0], keys[-1]
            at += 1
    return int32(first.tolist()), int32(last.tolist())
