"""A release's engine on layers of latent attention, of the target and possibly of a draft model.

A file and line below vllm/ is that of vLLM 0.33.0.
"""

from collections.abc import Sequence
from typing import Any

import torch

from attnfuzz.kernels.vllm.mla.latent_pool import LatentPool
from attnfuzz.kernels.vllm.mla.layer import LatentModel, mla_layer
from attnfuzz.kernels.vllm.mla.runner import LatentRunner
from attnfuzz.kernels.vllm.serving.drafting import DRAFT_LAYER, DraftingEngineRunner, EngineDraftModel
from attnfuzz.kernels.vllm.serving.model import EngineModel
from attnfuzz.kernels.vllm.serving.runner import EngineRunner
from attnfuzz.kernels.vllm.serving.scheduled_pool import EnginePool


class LatentEnginePool(EnginePool, LatentPool):
    """A pool of latents, all of whose blocks except the null block are free initially."""

    def _seen(self, rows: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return self.projection.projected(self.tokens.key[list(rows), 0])


class LatentDraftPool(LatentEnginePool):
    """The latents of the draft model's layer, with the target's block table."""

    names = ("draft_kv_cache",)


class LatentEngineModel(EngineModel, LatentModel):
    """The model of an engine's server, with a layer of latent attention."""


class LatentEngineDraftModel(EngineDraftModel, LatentEngineModel):
    """A draft model with a layer of latent attention, which generates given drafts."""


class LatentEngineRunner(EngineRunner, LatentRunner):
    """The release's runner and scheduler, with a layer of latent attention."""

    model_type = LatentEngineModel

    @property
    def most_requests(self) -> int:
        """The maximum number of requests in a forward. It may exceed that of a step, since other requests continue."""
        return self._limits.requests


class LatentDraftingEngineRunner(DraftingEngineRunner, LatentEngineRunner):
    """The release's runner and scheduler with a draft model; its layer of latent attention has its own pool."""

    draft_type = LatentEngineDraftModel
    draft_pool_type = LatentDraftPool

    def _make_draft_layer(self) -> Any:
        server = self._server
        assert isinstance(self.draft_pool, LatentPool)
        return mla_layer(server.loaded, server.case, self._config, self.draft_pool, DRAFT_LAYER)
