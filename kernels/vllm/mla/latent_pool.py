"""The cache of latents: the pool in vLLM's layout before a step, and the tokens that the step writes."""

from collections.abc import Sequence

import torch

from attnfuzz.kernels.interface.backend import Attended, Bench
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.vllm.mla.up_projection import UpProjection
from attnfuzz.kernels.vllm.pool import VllmPool
from attnfuzz.reference.case import Case, Request, Step
from attnfuzz.reference.masks import mask_of


class LatentPool(VllmPool):
    """A server's pool [pages, page_size, rank + rope], and the projection of its latents for each head."""

    names = ("kv_cache",)
    kernel = "concat_and_cache_mla"

    def __init__(self, case: Case, bench: Bench, form: type[PagedKv]) -> None:
        super().__init__(case, bench, form)
        geometry = case.geometry
        assert geometry.latent is not None
        self.projection = UpProjection(geometry.latent, geometry.q_heads, geometry.dtype.torch_dtype)

    @property
    def projection_of_layer(self) -> UpProjection:
        """The projection for the heads of the process."""
        return self.projection

    @property
    def kv_cache(self) -> torch.Tensor:
        """The pool as a layer's kv_cache."""
        cache = self.paged.cache
        assert isinstance(cache, torch.Tensor)
        return cache.squeeze(1)

    def attended(self, step: Step, query: torch.Tensor, first_rows: Sequence[int]) -> tuple[Attended, ...]:
        """Return the attention expected for each request of a step, over the keys and values of each head."""
        due = []
        for first, request in zip(first_rows, step.requests, strict=True):
            key, value = self.projection.projected(self._latents(request))
            own = query[first : first + request.q_len]
            due.append(Attended(first, own, key, value, mask_of(self._case, step, request)))
        return tuple(due)

    def _latents(self, request: Request) -> torch.Tensor:
        return self.tokens.keys(request.slot, request.kv_len)[:, 0]
