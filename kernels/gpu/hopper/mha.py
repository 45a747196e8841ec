"""A serving engine's multi-head attention layer on Hopper: decode and verify on XQA, all else on fmha_v2."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from attnfuzz.kernels.backend import Bench, Output
from attnfuzz.kernels.gpu import fmha_v2, xqa
from attnfuzz.kernels.ops_table import OpsTable
from attnfuzz.kernels.paged_kv import FiniteTails
from attnfuzz.kernels.plan import BatchMetadata, Row
from attnfuzz.kernels.results import Results
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.reference.case import Case, Step


class HopperMhaSession(MhaSession):
    """The same planning and routing as everywhere; neither kernel gives an LSE next to a paged cache."""

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        super().__init__(ops, case, bench)
        # XQA's begins with semaphores, where fmha_v2 counts tiles: nobody promises that they can share one.
        self._context_workspace = self.workspace_type(case, bench)

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        told = super()._arguments(step, plan, query, results)
        return {name: value for name, value in told.items() if name not in ("lse", "return_lse")}

    def _decode_arguments(self, step: Step, plan: BatchMetadata, told: dict[str, Any]) -> dict[str, Any]:
        """XQA derives its batch from the queries, and wants the causal mask among draft tokens for all of it."""
        arguments = super()._decode_arguments(step, plan, told)
        stride = step.tokens_per_request
        if stride > 1:
            mask = xqa.draft_mask([stride] * step.padded_batch, stride)
            arguments["mask"] = self._bench.memory.copy("mask", mask.unflatten(0, (-1, stride)))
        return arguments

    def _context_arguments(self, step: Step, plan: BatchMetadata, told: dict[str, Any]) -> dict[str, Any]:
        """fmha_v2's arguments, which are others."""
        return {
            **fmha_v2.told_on_pages(plan, self._case.geometry, told["query"], told["kv_cache"]),
            "workspace_buffer": self._context_workspace.take(self._ops.prefill_workspace),
            "bmm1_scale": told["bmm1_scale"],
            "bmm2_scale": told["bmm2_scale"],
            "batch_size": self.context_batch(step, plan),
            "out": told["out"],
            "sinks": told["sinks"],
        }

    def _output(self, step: Step, planned: Sequence[Row], query: torch.Tensor, results: Results) -> Output:
        # Split KV keeps partial outputs in the query's dtype, and merges them (mha.cu, toFp16 before mergeAndSave).
        roundings = 2 if self.uses_decode_kernel(step.mode) else 1
        return replace(super()._output(step, planned, query, results), lse=None, roundings=roundings)


class HopperMhaAsServed(HopperMhaSession):
    """Over a pool whose pages had other tokens before: the rest of a request's last page is no NaN."""

    kv_type = FiniteTails
