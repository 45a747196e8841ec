"""Multi-head attention under masks: the context kernel with one packed mask per request, as in FlashInfer.

Servers run the verify steps of draft trees this way (SGLang's FlashInferAttnBackend with topk > 1). A causal step is
launched as it is without masks.
"""

from typing import Any

import torch

from attnfuzz.kernels.planning.packed_masks import masks_of_rows, packed_masks
from attnfuzz.kernels.planning.plan import BatchMetadata
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.reference.case import Step
from attnfuzz.reference.masks import applies


class MaskedMhaSession(MhaSession):
    """A server's attention layer whose steps may have masks. They are eager; graphs are causal."""

    def _attend(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> None:
        if not applies(self._case, step):
            super()._attend(step, plan, query, results)
            return
        assert self._ops.masked_context is not None
        arguments = self._context_arguments(step, plan, self._arguments(step, plan, query, results))
        self._bench.launcher.launch(self._ops.masked_context, **arguments, **self.mask_arguments(step))

    def mask_arguments(self, step: Step) -> dict[str, Any]:
        """Return the packed masks of the planned rows."""
        memory = self._bench.memory
        bits, starts = packed_masks(masks_of_rows(self._case, step, self._planned_rows(step)))
        return {
            "packed_custom_mask": memory.copy("packed_custom_mask", bits),
            "mask_indptr": memory.copy("mask_indptr", starts),
        }
