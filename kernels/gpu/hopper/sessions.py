"""The TRT-LLM sessions on Hopper's kernels: XQA, fmha_v2, and FlashInfer's ragged and MLA wrappers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

import torch

from attnfuzz.kernels.gpu.direct import fmha_v2, xqa
from attnfuzz.kernels.gpu.direct.mla import MlaBatch, MlaWrapper, StaticSize
from attnfuzz.kernels.gpu.wrappers.ragged import FA3_RAGGED
from attnfuzz.kernels.gpu.wrappers.wrapper import Wrapper, WrapperKind
from attnfuzz.kernels.interface.backend import Bench, Output
from attnfuzz.kernels.interface.ops_table import OpsTable
from attnfuzz.kernels.planning.lengths import place_int32
from attnfuzz.kernels.planning.paged_kv import FiniteTails
from attnfuzz.kernels.planning.plan import BatchMetadata, Row
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.workspace import SharedWorkspace
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession, Replan, widest_rows
from attnfuzz.kernels.trtllm.prefill import Chunk, MlaPrefill, Partial, Queries
from attnfuzz.reference.case import Case, Step

Keys = tuple[torch.Tensor, torch.Tensor]


class HopperMlaPrefill(MlaPrefill):
    """The common chunks, fixups and merges. One wrapper is planned again for every launch."""

    form: ClassVar[WrapperKind] = FA3_RAGGED

    def __init__(self, ops: OpsTable, case: Case, bench: Bench, workspace: SharedWorkspace) -> None:
        super().__init__(ops, case, bench, workspace)
        self._wrapper: Wrapper | None = None

    def _launch(self, queries: Queries, chunk: Chunk, keys: Keys, part: Partial, *, causal: bool) -> None:
        if not chunk.lengths:
            return
        if self._wrapper is None:
            # Packed keys have the layout NHD.
            self._wrapper = Wrapper(self.form, self._case, self._bench, "NHD")
        geometry = self._case.geometry
        layer = {
            "num_qo_heads": geometry.q_heads,
            "num_kv_heads": geometry.q_heads,
            "head_dim_qk": self._latent.nope + self._latent.rope,
            "head_dim_vo": self._latent.vo,
            "causal": causal,
            "window_left": -1,
            "logits_soft_cap": 0.0,
            "sm_scale": self._launched_scales()["bmm1_scale"],
            "q_data_type": geometry.dtype.torch_dtype,
            "kv_data_type": geometry.dtype.torch_dtype,
        }
        key_offsets = place_int32(self._bench, "cum_seq_lens_kv", self._key_offsets(chunk))
        self._wrapper.plan({"qo_indptr": queries.cum_seq_lens, "kv_indptr": key_offsets}, layer)
        (key, value), tokens = keys, queries.step.tokens
        # It takes no more query rows than planned.
        written = part.results[:tokens]
        self._wrapper.run(
            q=queries.tensor[:tokens],
            k=key,
            v=value,
            k_scale=None,
            v_scale=None,
            out=written.out,
            lse=written.lse,
            return_lse=True,
        )


class HopperMhaSession(MhaSession):
    """The common planning and routing; neither kernel returns an LSE with a paged cache."""

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        super().__init__(ops, case, bench)
        # XQA's begins with semaphores, where fmha_v2 counts tiles: it is not documented that they can share one.
        self._context_workspace = self.workspace_type(case, bench)

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        common = super()._arguments(step, plan, query, results)
        return {name: value for name, value in common.items() if name not in ("lse", "return_lse")}

    def _decode_arguments(self, step: Step, plan: BatchMetadata, common: dict[str, Any]) -> dict[str, Any]:
        """Return XQA's arguments, which derives its batch from the queries and needs a causal mask for all drafts."""
        arguments = super()._decode_arguments(step, plan, common)
        stride = step.tokens_per_request
        if stride > 1:
            mask = xqa.draft_mask([stride] * step.padded_batch, stride)
            arguments["mask"] = self._bench.memory.copy("mask", mask.unflatten(0, (-1, stride)))
        return arguments

    def _context_arguments(self, step: Step, plan: BatchMetadata, common: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of fmha_v2, which differ from trtllm-gen's."""
        return {
            **fmha_v2.arguments_on_pages(plan, self._case.geometry, common["query"], common["kv_cache"]),
            "workspace_buffer": self._context_workspace.take(self._ops.prefill_workspace),
            "bmm1_scale": common["bmm1_scale"],
            "bmm2_scale": common["bmm2_scale"],
            "batch_size": self.context_batch(step, plan),
            "out": common["out"],
            "sinks": common["sinks"],
        }

    def _output(self, step: Step, planned: Sequence[Row], query: torch.Tensor, results: Results) -> Output:
        # Split KV keeps partial outputs in the query's dtype, and merges them (mha.cu, toFp16 before mergeAndSave).
        roundings = 2 if self.uses_decode_kernel(step.mode) else 1
        return replace(super()._output(step, planned, query, results), lse=None, roundings=roundings)


class HopperMhaAsServed(HopperMhaSession):
    """A session on a pool whose pages held other tokens before: the rest of a request's last page is not NaN."""

    kv_type = FiniteTails


MLA_BACKEND: Final = "fa3"
"""FlashInfer's automatic choice on Hopper (flashinfer.utils.determine_mla_backend)."""


class HopperMlaSession(MlaSession):
    """The common planning and routing. Metadata reaches the kernels through a wrapper's plan."""

    prefill_type = HopperMlaPrefill
    wrapper_type: type[MlaWrapper] = MlaWrapper

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        super().__init__(ops, case, bench)
        self._wrapper: MlaWrapper | None = None

    def _attend(self, rows: Sequence[Row], query: torch.Tensor, results: Results) -> None:
        if not rows:
            return
        if self._wrapper is None:
            self._wrapper = self.wrapper_type(self._case, self._bench, MLA_BACKEND)
        self._plan_for(self._wrapper, rows)
        self._wrapper.launch(query, self._latents, results)

    def _capturable(self, step: Step) -> tuple[Replan, Callable[[torch.Tensor, Results], None]]:
        """Prepare a capture with a plan for padding, as in servers; each graph has its own wrapper."""
        static = StaticSize(step.padded_batch, self._most_pages())
        wrapper = self.wrapper_type(self._case, self._bench, MLA_BACKEND, static)

        def replan(rows: Sequence[Row]) -> None:
            self._plan_for(wrapper, rows)

        def launch(query: torch.Tensor, results: Results) -> None:
            wrapper.launch(query, self._latents, results)

        replan(Row.padding(step, step.padded_batch))
        return replan, launch

    def _plan_for(self, wrapper: MlaWrapper, rows: Sequence[Row]) -> None:
        wrapper.plan(MlaBatch.of(rows, self._kv), self._scales["bmm1_scale"])

    @property
    def _latents(self) -> torch.Tensor:
        assert isinstance(self._kv.cache, torch.Tensor)
        return self._kv.cache

    def _most_pages(self) -> int:
        """Count the pages in the largest plan of the case."""
        return max(sum(self._table.pages_for(row.kv_len) for row in widest_rows(step)) for step in self._case.steps)

    def _output(self, step: Step, query: torch.Tensor, results: Results, first_rows: Sequence[int]) -> Output:
        # Partial results of a request whose keys are split are kept in the output's dtype (scheduler.cuh, MLAPlan).
        return replace(super()._output(step, query, results, first_rows), roundings=2)
