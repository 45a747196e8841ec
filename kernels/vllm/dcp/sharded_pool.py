"""The KV caches of ranks: each holds its share of every request, with the same page table on all ranks."""

from collections.abc import Sequence
from dataclasses import replace as with_fields
from typing import ClassVar

import torch
from msgspec.structs import replace

from attnfuzz.kernels.interface.backend import Attended, Bench, WrittenCache
from attnfuzz.kernels.planning.lengths import running_sum
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.slot_tokens import SlotTokens
from attnfuzz.kernels.vllm.dcp.sharding import Sharding
from attnfuzz.kernels.vllm.mla.latent_pool import LatentPool
from attnfuzz.kernels.vllm.mla.up_projection import UpProjection
from attnfuzz.kernels.vllm.pool import VllmPool
from attnfuzz.reference.case import Case, Step


class _Share(PagedKv):
    """The memory of one rank, for a case whose pages span all ranks. `whole` are the tokens of all ranks."""

    sharding: ClassVar[Sharding]
    rank: ClassVar[int]

    def _open(self, case: Case, bench: Bench, pages: dict[int, list[int]], full: dict[int, list[int]]) -> None:
        super()._open(case, bench, pages, full)
        self.whole = self.tokens
        self.tokens = self.sharding.share(self.rank, self.whole)
        self.page_size //= self.sharding.ranks


class RankPool(VllmPool):
    """The pool of a rank: a page has its share of `block_size` tokens. `case` describes all ranks together."""

    def __init__(self, case: Case, bench: Bench, form: type[PagedKv], sharding: Sharding, rank: int) -> None:
        self.case, self.rank, self.sharding = case, rank, sharding
        geometry = replace(case.geometry, page_size=case.geometry.page_size * sharding.ranks)
        parts = {"sharding": sharding, "rank": rank}
        super().__init__(replace(case, geometry=geometry), bench, type("Share", (_Share, form), parts))

    @property
    def tokens(self) -> SlotTokens:
        """The tokens of the server's model, which all ranks compute."""
        assert isinstance(self.paged, _Share)
        return self.paged.whole

    @property
    def block_size(self) -> int:
        """The number of a request's tokens per page id, over all ranks."""
        return self._case.geometry.page_size

    def write_before(self, step: Step) -> None:
        """Set the state of the pool before `step`."""
        super().write_before(self.sharding.local(self.rank, step))

    def written(self, step: Step, free: Sequence[tuple[int, int]] = ()) -> WrittenCache:
        """Return the pool before and after `step`, which must only write the rank's share of the new tokens."""
        own = [
            (slot, int((self.sharding.positions(self.rank, position + 1) < position).sum()))
            for slot, position in free
            if self.sharding.rank_of(position) == self.rank
        ]
        cache = super().written(self.sharding.local(self.rank, step), own)
        tokens = [
            (index, token - (request.kv_len - request.q_len))
            for index, request in enumerate(step.requests)
            for token in self.sharding.positions(self.rank, request.kv_len).tolist()
            if token >= request.kv_len - request.q_len
        ]
        tensors = (with_fields(each, name=f"{each.name} of rank {self.rank}") for each in cache.tensors)
        return with_fields(cache, tensors=tuple(tensors), tokens=tuple(tokens))


class LatentRankPool(RankPool, LatentPool):
    """The pool of a rank with latents, and the projection for the rank's heads."""

    @property
    def projection_of_layer(self) -> UpProjection:
        """The projection for the rank's heads."""
        geometry = self.case.geometry
        assert geometry.latent is not None
        heads = geometry.q_heads // self.sharding.ranks
        return UpProjection(geometry.latent, heads, geometry.dtype.torch_dtype, first=self.rank * heads)


class ShardedPool(VllmPool):
    """The pools of all ranks, which have the same pages; `paged` is that of the first one."""

    def __init__(self, case: Case, bench: Bench, form: type[PagedKv]) -> None:
        self.sharding = Sharding.of(case)
        pool = LatentRankPool if case.geometry.latent else RankPool
        self.ranks = [pool(case, bench, form, self.sharding, rank) for rank in range(self.sharding.ranks)]
        self.paged = self.ranks[0].paged

    def write_before(self, step: Step) -> None:
        """Set the state of all pools before `step`."""
        for rank in self.ranks:
            rank.write_before(step)

    def written(self, step: Step, free: Sequence[tuple[int, int]] = ()) -> WrittenCache:
        """Return the pools before and after `step`."""
        caches = [rank.written(step, free) for rank in self.ranks]
        firsts = running_sum(len(cache.tokens) for cache in caches)
        tensors = [
            with_fields(tensor, first=first)
            for first, cache in zip(firsts, caches, strict=False)
            for tensor in cache.tensors
        ]
        tokens = [token for cache in caches for token in cache.tokens]
        return WrittenCache(tuple(tensors), tuple(tokens), kernel=caches[0].kernel)

    def attended(self, step: Step, query: torch.Tensor, first_rows: Sequence[int]) -> tuple[Attended, ...]:
        """Return the attention expected for each request of a step, over the keys of all ranks."""
        return self.ranks[0].attended(step, query, first_rows)

    def restore(self, contents: Sequence[torch.Tensor]) -> None:
        """Set the contents of the tensors of `written`."""
        each = len(contents) // len(self.ranks)
        for index, rank in enumerate(self.ranks):
            rank.restore(contents[index * each : (index + 1) * each])
