"""Defects of captured graphs: values frozen at capture, and tensors that a replay does not refresh."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.defects.planting import DefectGroup
from attnfuzz.kernels.interface.backend import Output
from attnfuzz.kernels.planning.plan import BatchMetadata, Row
from attnfuzz.kernels.planning.queries import BmmScales, place_queries
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.kernels.trtllm.mla import MlaSession
from attnfuzz.reference.case import Launch, Mode, Step
from attnfuzz.reference.mistake import Mistake

DEFECTS: list[Defect] = []

_REPLAYS = DefectGroup(DEFECTS, Layer.GRAPH, BugClass.CAPTURE_AND_REPLAY_DIFFER)
_STALE = DefectGroup(DEFECTS, Layer.GRAPH, BugClass.STALE_TAILS)
_WINDOWS = DefectGroup(DEFECTS, Layer.GRAPH, BugClass.WINDOW)
_SCALES = DefectGroup(DEFECTS, Layer.GRAPH, BugClass.SCALES)


@_REPLAYS.add("query_not_copied_on_replay", "SageAttention issue #392 (replays with new inputs)", Mistake.GIVEN_QUERY)
class ReplaysOldQueries(MhaSession):
    """A replay reads the queries of the capture."""

    def _replay(self, step: Step, queries: torch.Tensor) -> Output:
        captured, rows = self._captured[step.mode, step.padded_tokens], Row.padded(step)
        self._refresh(captured.plan, rows)
        captured.results.renew(self._bench)
        captured.graph.replay()
        return self._output(step, rows, place_queries(self._case, self._bench, queries), captured.results)


@_REPLAYS.add("output_of_last_capture", "SGLang PR #30834 (one output buffer for the graphs of all buckets)")
class ReturnsOutputOfLastCapture(MhaSession):
    """A replay returns the output buffer of the last captured graph."""

    def _replay(self, step: Step, queries: torch.Tensor) -> Output:
        output, last = super()._replay(step, queries), [*self._captured.values()][-1].results
        return replace(output, out=last.out, lse=last.lse)


@_REPLAYS.add("graph_of_other_mode", "llama.cpp PR #28549 (two graphs with one key)", Mistake.GIVEN_ROWS)
class ReplaysLastOfSameShape(MhaSession):
    """A capture replaces the graphs of other modes with the same numbers of queries and requests."""

    def _capture(self, step: Step) -> None:
        super()._capture(step)
        last = self._captured[step.mode, step.padded_tokens]
        for (mode, tokens), captured in self._captured.items():
            if (tokens, captured.plan.batch) == (step.padded_tokens, last.plan.batch):
                self._captured[mode, tokens] = last


@_REPLAYS.add(
    "plan_not_rebound_on_replay",
    "SGLang PR #26019 (metadata built anew at replay)",
    Mistake.GIVEN_LENGTH,
    Mistake.GIVEN_PAGES,
)
class PlansReplaysAnew(MhaSession):
    """A replay makes a new plan, which the graph does not use."""

    def _refresh(self, plan: BatchMetadata, rows: Sequence[Row]) -> None:
        self._plan(rows)


@_REPLAYS.add(
    "query_offsets_of_first_replay", "FlashInfer issue #2511 (offsets that each replay has to copy)", Mistake.GIVEN_ROWS
)
class KeepsFirstQueryOffsets(MhaSession):
    """Cumulative query lengths remain those of the first replay."""

    def _refresh(self, plan: BatchMetadata, rows: Sequence[Row]) -> None:
        first = plan.cum_seq_lens_q.clone()
        super()._refresh(plan, rows)
        if first.any():
            plan.cum_seq_lens_q.copy_(first)


@_STALE.add("bucket_tail_not_refreshed", "SGLang PR #24743 (leftovers of the last replay in padded rows)")
class LeavesBucketTail(MhaSession):
    """Padded rows keep the lengths and pages of the last replay."""

    def _refresh(self, plan: BatchMetadata, rows: Sequence[Row]) -> None:
        real = [row for row in rows if row.slot is not None]
        batch = len(real)
        part = replace(
            plan,
            seq_lens=plan.seq_lens[:batch],
            cum_seq_lens_q=plan.cum_seq_lens_q[: batch + 1],
            cum_seq_lens_kv=plan.cum_seq_lens_kv[: batch + 1],
            block_tables=plan.block_tables[:batch],
        )
        super()._refresh(part, real)


@_STALE.add(
    "columns_of_first_request_refreshed", "SGLang PR #28106 (columns that are never written)", Mistake.GIVEN_PAGES
)
class RefreshesColumnsOfFirst(MhaSession):
    """A replay refreshes only the page table columns that the first request needs."""

    def _refresh(self, plan: BatchMetadata, rows: Sequence[Row]) -> None:
        before = plan.block_tables.clone()
        super()._refresh(plan, rows)
        width = self._table.pages_for(rows[0].kv_len)
        plan.block_tables[:, width:].copy_(before[:, width:])


@_REPLAYS.add("packed_drafts_at_stride", "SGLang PR #21987", Mistake.GIVEN_ROWS)
class PacksDraftsAtStride(MhaSession):
    """Accept lengths are replaced by the captured stride, although the queries are packed."""

    def _refresh(self, plan: BatchMetadata, rows: Sequence[Row]) -> None:
        super()._refresh(plan, [replace(row, q_len=plan.max_q_len) for row in rows])


@_REPLAYS.add("lengths_of_first_replay", "SGLang PR #26655", Mistake.GIVEN_LENGTH)
class KeepsFirstLengths(MhaSession):
    """KV lengths remain those of the first replay."""

    def _refresh(self, plan: BatchMetadata, rows: Sequence[Row]) -> None:
        first = plan.seq_lens.clone()
        super()._refresh(plan, rows)
        if first.any():
            plan.seq_lens.copy_(first)


@_WINDOWS.add(
    "window_not_captured", "SGLang PR #31501 (planning without the window)", Mistake.GIVEN_WINDOW, Mistake.WINDOW
)
class CapturesWithoutWindow(MhaSession):
    """A graph is captured without the window."""

    def _arguments(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> dict[str, Any]:
        arguments = super()._arguments(step, plan, query, results)
        return arguments | {"window_left": -1} if step.launch is Launch.CAPTURE else arguments


@_SCALES.add(
    "v_scale_not_captured", "SGLang PR #20705 (scales that never arrive)", Mistake.GIVEN_SCALE, Mistake.OUTPUT_SCALE
)
class CapturesBeforeScales(MhaSession):
    """A graph is captured before the scale of V is known."""

    def _launched_scales(self, step: Step) -> BmmScales:
        scales = super()._launched_scales(step)
        return {**scales, "bmm2_scale": 1.0} if step.launch is Launch.CAPTURE else scales


@_REPLAYS.add("accept_lengths_not_on_cpu", "SGLang PR #21987", Mistake.GIVEN_ROWS, Mistake.GIVEN_LENGTH)
class ReplaysAtStrideOne(MlaSession):
    """Accept lengths that are not on the CPU count as 1."""

    def replay_stride(self, step: Step) -> int:
        """Return 1 for draft extends."""
        return 1 if step.mode is Mode.DRAFT_EXTEND else super().replay_stride(step)


@_REPLAYS.add(
    "replay_stride_with_bonus",
    "SGLang PR #23962 (accept lengths with and without the bonus token)",
    Mistake.GIVEN_ROWS,
    Mistake.GIVEN_LENGTH,
)
class ReplaysWithBonus(MlaSession):
    """A replay plans lengths for the captured stride plus the bonus token."""

    def replay_stride(self, step: Step) -> int:
        """Return one more for draft extends."""
        return super().replay_stride(step) + (step.mode is Mode.DRAFT_EXTEND)
