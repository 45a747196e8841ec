"""Multi-head attention on TRT-LLM's decode and context kernels, as a serving engine drives them.

Decode and verify are planned after padding and run on the decode kernel, which takes its batch from the query rows.
Draft extends and prefills are planned before padding and run on the context kernel, which takes the batch size as an
argument: the planned one, regardless of later padding (SGLang PR #21649).
"""

from typing import Any

import torch

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.interface.ops_table import OpsTable
from attnfuzz.kernels.planning.paged_session import PLANNED_AFTER_PADDING, PagedSession
from attnfuzz.kernels.planning.plan import BatchMetadata
from attnfuzz.kernels.planning.queries import BmmScales
from attnfuzz.kernels.planning.results import Results
from attnfuzz.reference.case import BlockScales, Case, Mode, Step


class MhaSession(PagedSession):
    """A server's attention layer over one case. Revisions and planted defects override a method, or a part."""

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        super().__init__(case, bench)
        self._ops = ops

    def uses_decode_kernel(self, mode: Mode) -> bool:
        """Return whether a mode is routed to the decode kernel: the modes planned after padding, as in SGLang."""
        return mode in PLANNED_AFTER_PADDING

    def context_batch(self, step: Step, plan: BatchMetadata) -> int:
        """Return the batch size argument of the context kernel: that of its metadata."""
        return plan.batch

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        """Return the arguments common to both kernels."""
        geometry = self._case.geometry
        return {
            "query": query,
            "kv_cache": self._kv.cache,
            "block_tables": plan.block_tables,
            "seq_lens": plan.seq_lens,
            "window_left": geometry.window_left,
            "sinks": self._sinks,
            "kv_layout": geometry.kv_layout.value,
            "out": results.out,
            "lse": results.lse,
            "return_lse": True,
            **self._tensors_of_scales(),
            **self._launched_scales(step),
        }

    def _tensors_of_scales(self) -> dict[str, Any]:
        """Return the scales of K and V as arguments, if they are finer than a tensor."""
        if self._kv.scales is None:
            return {}
        swizzled = self._case.scales.blocks is BlockScales.SWIZZLED
        return {"kv_cache_sf": self._kv.scales} | ({"v_scales_swizzled": True} if swizzled else {})

    def _launched_scales(self, step: Step) -> BmmScales:
        """Return the factors that a launch gets."""
        return self._scales

    def _attend(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> None:
        common = self._arguments(step, plan, query, results)
        if self.uses_decode_kernel(step.mode):
            self._bench.launcher.launch(self._ops.decode, **self._decode_arguments(step, plan, common))
        else:
            self._bench.launcher.launch(self._ops.context, **self._context_arguments(step, plan, common))

    def _decode_arguments(self, step: Step, plan: BatchMetadata, common: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the decode kernel."""
        geometry = self._case.geometry
        need = self._ops.decode_workspace(
            batch=step.padded_batch,
            q_len=step.tokens_per_request,
            q_heads=geometry.q_heads,
            kv_heads=geometry.kv_heads,
            head_dim_vo=geometry.head_dim_vo,
            max_seq_len=plan.max_kv_len,
        )
        return {
            "workspace_buffer": self._workspace.take(need),
            "max_seq_len": plan.max_kv_len,
            "q_len_per_req": step.tokens_per_request,
            **common,
        }

    def _context_arguments(self, step: Step, plan: BatchMetadata, common: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the context kernel."""
        return {
            "workspace_buffer": self._workspace.take(self._ops.prefill_workspace),
            "max_q_len": plan.max_q_len,
            "max_kv_len": plan.max_kv_len,
            "batch_size": self.context_batch(step, plan),
            "cum_seq_lens_q": plan.cum_seq_lens_q,
            "cum_seq_lens_kv": plan.cum_seq_lens_kv,
            **common,
        }
