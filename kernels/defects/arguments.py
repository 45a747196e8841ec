"""Defects of what else a launch is told: windows, sinks, and the strides of queries and caches."""

from typing import Any

import torch

from attnfuzz.kernels.defects.defect import BugClass, Layer
from attnfuzz.kernels.defects.planting import defect
from attnfuzz.kernels.plan import BatchMetadata
from attnfuzz.kernels.results import Results
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.reference.case import KvView, Mode, Step
from attnfuzz.reference.mistake import Mistake


class TellsWindowSize(MhaSession):
    """The window's size is told where the keys before a query's own are meant."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        told = super()._arguments(step, plan, query, results)
        return told | {"window_left": told["window_left"] + 1} if told["window_left"] >= 0 else told


class DropsWindowInVerify(MhaSession):
    """A verify has no window."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        told = super()._arguments(step, plan, query, results)
        return told | {"window_left": -1} if step.mode is Mode.TARGET_VERIFY else told


class DropsSinksInDrafts(MhaSession):
    """Draft extends have no sinks."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        told = super()._arguments(step, plan, query, results)
        return told | {"sinks": None} if step.mode in (Mode.DRAFT_EXTEND, Mode.DRAFT_EXTEND_V2) else told


class TellsSinksOfKvHeads(MhaSession):
    """The query heads of a group have one sink, that of the first."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        told = super()._arguments(step, plan, query, results)
        if self._sinks is None:
            return told
        group = self._case.geometry.group
        return told | {"sinks": self._bench.memory.copy("sinks", self._sinks[::group].repeat_interleave(group))}


class ScalesSinks(MhaSession):
    """Sinks are scaled like the logits."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        told = super()._arguments(step, plan, query, results)
        if self._sinks is None:
            return told
        return told | {"sinks": self._bench.memory.copy("sinks", self._sinks * self._scales["bmm1_scale"])}


class AssumesPackedQueries(MhaSession):
    """Rows of queries are taken to follow each other, whatever their stride."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        packed = query.as_strided(query.shape, (query.shape[1] * query.stride(1), query.stride(1), 1))
        return super()._arguments(step, plan, packed, results)


class AssumesPackedHeads(MhaSession):
    """Heads of queries are taken to follow each other, whatever their stride."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        packed = query.as_strided(query.shape, (query.stride(0), query.shape[2], 1))
        return super()._arguments(step, plan, packed, results)


class SwapsPairedCache(MhaSession):
    """K and V of a pool that holds both change places."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        told = super()._arguments(step, plan, query, results)
        cache = told["kv_cache"]
        return told | {"kv_cache": (cache[:, 1], cache[:, 0])} if isinstance(cache, torch.Tensor) else told


class ReadsTokensAsHeads(MhaSession):
    """A token-major pool is read as if it were head-major."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        told = super()._arguments(step, plan, query, results)
        if self._case.views.kv is not KvView.TOKEN_MAJOR:
            return told
        return told | {"kv_cache": tuple(_dense(pool) for pool in told["kv_cache"])}


def _dense(pool: torch.Tensor) -> torch.Tensor:
    """The pool's memory, seen with the strides of its shape."""
    return pool.as_strided(pool.shape, torch.empty(pool.shape, device="meta").stride())


ARGUMENT_DEFECTS = (
    defect(
        TellsWindowSize,
        "window_size_for_window_left",
        Layer.MASK,
        BugClass.WINDOW,
        "ZML PR #763, transformers issue #39408",
        explained_by=(Mistake.TOLD_WINDOW, Mistake.WINDOW),
    ),
    defect(
        DropsWindowInVerify,
        "window_dropped_in_verify",
        Layer.MASK,
        BugClass.WINDOW,
        "SGLang PR #31501 (a window on some paths only)",
        explained_by=(Mistake.TOLD_WINDOW, Mistake.WINDOW),
    ),
    defect(
        DropsSinksInDrafts,
        "sinks_dropped_in_drafts",
        Layer.SINK,
        BugClass.SINKS,
        "SGLang PR #8834 (sinks handed to one path after another)",
        explained_by=(Mistake.TOLD_SINKS, Mistake.SINK),
    ),
    defect(
        TellsSinksOfKvHeads,
        "sinks_of_kv_heads",
        Layer.SINK,
        BugClass.SINKS,
        "Pie PR #272 (sinks expanded by the group)",
        explained_by=(Mistake.TOLD_SINKS, Mistake.SINK_OF_ANOTHER_HEAD),
    ),
    defect(
        ScalesSinks,
        "sinks_scaled_as_logits",
        Layer.SINK,
        BugClass.SINKS,
        "FlashInfer, docstring of sinks; arXiv:2309.17453",
        explained_by=(Mistake.TOLD_SINKS, Mistake.SINK_SCALED),
    ),
    defect(
        AssumesPackedQueries,
        "query_rows_assumed_packed",
        Layer.PLANNER,
        BugClass.STRIDES,
        "SGLang PR #31667",
        explained_by=(Mistake.TOLD_QUERY, Mistake.QUERY_STRIDE),
    ),
    defect(
        AssumesPackedHeads,
        "query_heads_assumed_packed",
        Layer.PLANNER,
        BugClass.STRIDES,
        "FlashInfer PR #553 (queries with strides)",
        explained_by=(Mistake.TOLD_QUERY, Mistake.QUERY_STRIDE),
    ),
    defect(
        SwapsPairedCache,
        "paired_cache_swapped",
        Layer.PLANNER,
        BugClass.STRIDES,
        "LMCache PR #4467 (a fused K and V pool read in another order)",
        explained_by=(Mistake.TOLD_PAGES,),
    ),
    defect(
        ReadsTokensAsHeads,
        "token_major_read_as_head_major",
        Layer.PLANNER,
        BugClass.STRIDES,
        "vLLM PR #43232 (heads and slots of a permuted pool)",
        explained_by=(Mistake.TOLD_PAGES, Mistake.CACHE_STRIDE),
    ),
)
"""What kernels are told beside lengths and pages."""
