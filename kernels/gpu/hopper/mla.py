"""A serving engine's latent attention layer on Hopper: FlashInfer's own kernels, planned on the host."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import torch

from attnfuzz.kernels.backend import Bench, Output
from attnfuzz.kernels.gpu.hopper.prefill import HopperMlaPrefill
from attnfuzz.kernels.gpu.mla_wrapper import MlaBatch, MlaWrapper, StaticSize
from attnfuzz.kernels.ops_table import OpsTable
from attnfuzz.kernels.plan import Row
from attnfuzz.kernels.results import Results
from attnfuzz.kernels.trtllm.mla import MlaSession, Replan, widest_rows
from attnfuzz.reference.case import Case, Step

BACKEND: Final = "fa3"
"""What FlashInfer takes on Hopper if it may choose (flashinfer.utils.determine_mla_backend)."""


class HopperMlaSession(MlaSession):
    """The same planning and routing as everywhere. Metadata goes to the kernels through a wrapper's plan."""

    prefill_type = HopperMlaPrefill
    wrapper_type: type[MlaWrapper] = MlaWrapper

    def __init__(self, ops: OpsTable, case: Case, bench: Bench) -> None:
        super().__init__(ops, case, bench)
        self._wrapper: MlaWrapper | None = None

    def _attend(self, rows: Sequence[Row], query: torch.Tensor, results: Results) -> None:
        if not rows:
            return
        if self._wrapper is None:
            self._wrapper = self.wrapper_type(self._case, self._bench, BACKEND)
        self._plan_for(self._wrapper, rows)
        self._wrapper.launch(query, self._latents, results)

    def _capturable(self, step: Step) -> tuple[Replan, Callable[[torch.Tensor, Results], None]]:
        """Captured on a plan for padding, as servers do; each graph has a wrapper of its own."""
        static = StaticSize(step.padded_batch, self._most_pages())
        wrapper = self.wrapper_type(self._case, self._bench, BACKEND, static)

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
        """The pages of the largest plan of the case."""
        return max(sum(self._table.pages_for(row.kv_len) for row in widest_rows(step)) for step in self._case.steps)

    def _output(self, step: Step, query: torch.Tensor, results: Results, first_rows: Sequence[int]) -> Output:
        # Partial results of a request whose keys are split are kept in the output's dtype (scheduler.cuh, MLAPlan).
        return replace(super()._output(step, query, results, first_rows), roundings=2)
