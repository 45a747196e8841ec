"""A release's engine above layers of latent attention, of which a draft model may have one.

A file and line below vllm/ is that of vLLM 0.33.0.
"""

from collections.abc import Sequence
from typing import Any

import torch

from attnfuzz.kernels.vllm.mla.layer import LatentModel, mla_layer
from attnfuzz.kernels.vllm.mla.pool import LatentPool
from attnfuzz.kernels.vllm.mla.runner import LatentRunner
from attnfuzz.kernels.vllm.serving.drafting import DRAFT_LAYER, DraftingEngineRunner, EngineDraftModel
from attnfuzz.kernels.vllm.serving.model import EngineModel
from attnfuzz.kernels.vllm.serving.pool import EnginePool
from attnfuzz.kernels.vllm.serving.runner import EngineRunner


class LatentEnginePool(EnginePool, LatentPool):
    """A pool of latents whose blocks are free at the beginning, but for the null block."""

    def _seen(self, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.projection.projected(self.tokens.key[list(rows), 0])


class LatentDraftPool(LatentEnginePool):
    """The latents of the draft model's layer, which has the same blocks."""

    names = ("draft_kv_cache",)


class LatentEngineModel(EngineModel, LatentModel):
    """The model of an engine's server, with a layer of latent attention."""


class LatentEngineDraftModel(EngineDraftModel, LatentEngineModel):
    """A draft model with such a layer, whose drafts are given."""


class LatentEngineRunner(EngineRunner, LatentRunner):
    """The release's runner and scheduler, with a layer of latent attention."""

    model_type = LatentEngineModel

    @property
    def most_requests(self) -> int:
        """The most requests of a forward, which may be more than those of a step: others go on."""
        return self._limits.requests


class LatentDraftingEngineRunner(DraftingEngineRunner, LatentEngineRunner):
    """The same with a draft model, whose layer has a pool of its own."""

    draft_type = LatentEngineDraftModel
    draft_pool_type = LatentDraftPool

    def _make_draft_layer(self) -> Any:
        server = self._server
        assert isinstance(self.draft_pool, LatentPool)
        return mla_layer(server.loaded, server.case, self._config, self.draft_pool, DRAFT_LAYER)
