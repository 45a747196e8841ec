"""Defects of memory: workspaces too small or dirty, overwritten inputs, rows wrongly cleared or left uncleared."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from attnfuzz.kernels.defects.defect import BugClass, Defect, Layer
from attnfuzz.kernels.defects.planting import DefectGroup, Plant
from attnfuzz.kernels.interface.backend import Op, Output
from attnfuzz.kernels.interface.ops_table import WorkspaceBytes
from attnfuzz.kernels.planning.paged_kv import PagedKv
from attnfuzz.kernels.planning.plan import Row
from attnfuzz.kernels.planning.results import Results
from attnfuzz.kernels.planning.workspace import NAN_BYTE, SharedWorkspace
from attnfuzz.kernels.trtllm.backends import TrtllmBackend
from attnfuzz.kernels.trtllm.mha import MhaSession
from attnfuzz.reference.case import Step, Workspace
from attnfuzz.reference.mistake import Mistake

DEFECTS: list[Defect] = []

_WORKSPACES = DefectGroup(DEFECTS, Layer.MEMORY, BugClass.WORKSPACE)
_ALIGNMENTS = DefectGroup(DEFECTS, Layer.MEMORY, BugClass.ALIGNMENT)
_PADDED = DefectGroup(DEFECTS, Layer.MEMORY, BugClass.PLANNED_THEN_PADDED)
_MERGES = DefectGroup(DEFECTS, Layer.MERGE, BugClass.LSE_AND_MERGE)
_SCALES = DefectGroup(DEFECTS, Layer.MEMORY, BugClass.SCALES)
_STALE = DefectGroup(DEFECTS, Layer.MEMORY, BugClass.STALE_TAILS)


_ALIGNMENT = 256


@_WORKSPACES.add("workspace_a_word_too_small", "vLLM issue #50781")
class ForgetsAWord(SharedWorkspace):
    """The workspace is one word too small."""

    def take(self, need: WorkspaceBytes) -> torch.Tensor:
        """Return a workspace that is four bytes smaller."""
        return super().take(replace(need, scratch=max(0, need.scratch - 4)))


@_ALIGNMENTS.add(
    "workspace_aligned_without_room", "Pie issue #414, FlashInfer PR #4955 (alignment of parts of a workspace)"
)
class AlignsWithoutRoom(SharedWorkspace):
    """The workspace begins at the next multiple of 256 bytes, but its size has no room for the alignment."""

    def take(self, need: WorkspaceBytes) -> torch.Tensor:
        """Return a workspace without the bytes before that address."""
        workspace = super().take(need)
        return workspace[-workspace.data_ptr() % _ALIGNMENT :] if need.total > _ALIGNMENT else workspace


@_WORKSPACES.add("semaphores_dirty_at_first", "FlashInfer PR #3474")
class LeavesSemaphoresDirty(SharedWorkspace):
    """The semaphores in a dirty workspace are not cleared."""

    def _new(self, need: WorkspaceBytes) -> torch.Tensor:
        workspace = super()._new(need)
        return workspace.fill_(NAN_BYTE) if self._state is Workspace.DIRTY else workspace


@_WORKSPACES.add("semaphores_move_with_size", "FlashInfer PR #1584")
class MovesSemaphores(SharedWorkspace):
    """A call uses the end of the workspace, so its semaphores are elsewhere than those of a larger call."""

    def take(self, need: WorkspaceBytes) -> torch.Tensor:
        """Return the last bytes of a workspace."""
        workspace = super().take(need)
        return workspace[workspace.numel() - need.total :]


@_WORKSPACES.add("semaphores_under_scratch", "vLLM PR #25520, FlashInfer PR #1643")
class SharesScratchWithPrefill(SharedWorkspace):
    """The context kernel's scratch overlaps the decode kernel's semaphores."""

    def take(self, need: WorkspaceBytes) -> torch.Tensor:
        """Return a workspace in which a call without semaphores has left its scratch."""
        workspace = super().take(need)
        if not need.semaphores:
            workspace[:_ALIGNMENT].fill_(NAN_BYTE)
        return workspace


@_PADDED.add(
    "padding_written_over_last_key", "SGLang PR #24743, vLLM issue #43810", Mistake.GIVEN_PAGES, Mistake.KEYS_REPLACED
)
class OverwritesLastKey(PagedKv):
    """The keys and values of padded tokens overwrite the last ones of the first request."""

    def write(self, step: Step, *, rejected_drafts: bool = False) -> None:
        """Write the step, then its padding."""
        super().write(step, rejected_drafts=rejected_drafts)
        first = step.requests[0] if step.requests else None
        if first is None or not first.kv_len or not step.padded:
            return
        last = first.kv_len - 1
        page, slot = self.pages[first.slot][last // self.page_size], last % self.page_size
        for pool in self._pools:
            pool.bits[page, slot] = pool.tokens[self.tokens.extra[0]]


@_PADDED.add("last_row_cleared_as_padding", "SGLang PR #28487 (padded rows cleared after the kernel)", Mistake.NO_KEYS)
class ClearsARowTooMany(MhaSession):
    """Clearing padded rows begins one row too early."""

    def _output(self, step: Step, planned: Sequence[Row], query: torch.Tensor, results: Results) -> Output:
        output = super()._output(step, planned, query, results)
        if step.padded_tokens > step.tokens:
            results[step.tokens - 1 : step.tokens].clear()
        return output


@_PADDED.add("last_padded_row_not_cleared", "SGLang PR #28487")
class LeavesLastRowUncleared(MhaSession):
    """The last padded row is not cleared."""

    def _output(self, step: Step, planned: Sequence[Row], query: torch.Tensor, results: Results) -> Output:
        last = results[-1:]
        kept = Results(last.out.clone(), last.lse.clone())
        output = super()._output(step, planned, query, results)
        last.out.copy_(kept.out)
        last.lse.copy_(kept.lse)
        return output


@_MERGES.add("lse_returned_natural", "SGLang PR #35045", Mistake.LSE_BASE)
class ReturnsNaturalLse(MhaSession):
    """The LSE is natural instead of base 2."""

    def _output(self, step: Step, planned: Sequence[Row], query: torch.Tensor, results: Results) -> Output:
        output = super()._output(step, planned, query, results)
        results.lse.mul_(math.log(2))
        return output


@_WORKSPACES.add("workspace_for_one_query", "vLLM issue #50781 (a workspace sized by the wrong count of tokens)")
def size_for_one_query(backend: TrtllmBackend) -> TrtllmBackend:
    """The workspace of a verify has room for one query per request."""
    correct = backend.table.decode_workspace

    def decode_workspace(*, q_len: int, **sizes: int) -> WorkspaceBytes:
        del q_len
        return correct(q_len=1, **sizes)

    return replace(backend, table=replace(backend.table, decode_workspace=decode_workspace))


def _in_kernels(change: Callable[[Op], Op]) -> Plant:
    """Return a plant that changes the decode and context kernels."""

    def plant(backend: TrtllmBackend) -> TrtllmBackend:
        table = backend.table
        return replace(backend, table=replace(table, decode=change(table.decode), context=change(table.context)))

    plant.__doc__ = change.__doc__
    return plant


@_SCALES.add("query_scaled_in_place", "SGLang PR #26089 (a kernel that updates its input)")
@_in_kernels
def scale_in_place(op: Op) -> Op:
    """The kernel scales its queries in place, and scales them back at its end."""

    def function(*, query: torch.Tensor, bmm1_scale: float, **arguments: Any) -> Any:
        query.mul_(bmm1_scale)
        answer = op.function(query=query, bmm1_scale=1.0, **arguments)
        query.div_(bmm1_scale)
        return answer

    return replace(op, function=function)


@_STALE.add("result_left_in_query", "FlashInfer RFC #3978 (writes inside the allocator's pool, which no checker sees)")
@_in_kernels
def leave_result_in_query(op: Op) -> Op:
    """The kernel leaves a copy of its output in its queries."""

    def function(*, query: torch.Tensor, out: torch.Tensor, **arguments: Any) -> Any:
        answer = op.function(query=query, out=out, **arguments)
        query.copy_(out)
        return answer

    return replace(op, function=function)
