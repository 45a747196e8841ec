"""Ranks that share the latents of each request: the layer's own DCP manager exchanges queries, latents and outputs.

A file and line below vllm/ is that of vLLM 0.33.0.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest import mock

import torch

from attnfuzz.kernels.vllm.dcp.runner import RankModel, RankRunner, ShardedRunner
from attnfuzz.kernels.vllm.drafter import DraftingRunner, LatentDraftModel
from attnfuzz.kernels.vllm.mla.layer import LatentModel
from attnfuzz.kernels.vllm.mla.prefills import prefills_on_stand_ins
from attnfuzz.kernels.vllm.mla.runner import LatentRunner

_THROUGH_NCCL: Final = dict.fromkeys(
    ("VLLM_USE_DIRECT_DCP_A2A", "VLLM_USE_DIRECT_DCP_Q_GATHER", "VLLM_USE_DIRECT_DCP_KV_GATHER"), "0"
)
"""Environment of a server that uses NCCL, as between nodes, instead of compiled kernels on shared memory."""


class LatentRankModel(RankModel, LatentModel):
    """The model of a rank, with a layer of latent attention."""


class LatentRankRunner(RankRunner, LatentRunner):
    """The release's model runner on one rank, with a layer of latent attention."""

    model_type = LatentRankModel

    @contextmanager
    def _process(self) -> Iterator[None]:
        """Do nothing: `ShardedRunner` enters one context for all ranks."""
        yield


class LatentRankDraftModel(LatentDraftModel, LatentRankModel):
    """The draft model of a rank."""


class LatentRankDraftingRunner(DraftingRunner, LatentRankRunner):
    """The release's model runner on one rank, with a draft model."""

    draft_type = LatentRankDraftModel


class LatentShardedRunner(ShardedRunner):
    """The model runners of all ranks, with layers of latent attention."""

    runners = LatentRankRunner, LatentRankDraftingRunner

    @contextmanager
    def _machine(self) -> Iterator[None]:
        """Enter the context of all ranks."""
        with (
            super()._machine(),
            prefills_on_stand_ins(),
            mock.patch.dict(os.environ, _THROUGH_NCCL),
            # v1/attention/ops/dcp.py:1608
            mock.patch.object(torch.distributed, "all_gather_into_tensor", self._group.all_gather_into_tensor),
        ):
            yield
