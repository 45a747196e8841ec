"""The workspace that kernels share: semaphores, zero at first use, and scratch."""

import torch

from attnfuzz.kernels.interface.backend import Bench, Fill
from attnfuzz.kernels.interface.ops_table import WorkspaceBytes
from attnfuzz.reference.case import Case, Workspace

NAN_BYTE = 0xFF
"""Repeated, this is a NaN in every float dtype, and -1 as a page id or request id."""


class SharedWorkspace:
    """Provides the workspace of each launch in the state that the case asks for.

    FRESH is a new workspace of zeros for each launch, of exactly its size. REUSED is one for the whole session,
    replaced only when a launch needs more. DIRTY is like REUSED, with a scratch that is NaN in every float dtype. Only
    the semaphores have to be zero, and only at first use: the kernels reset them (FlashInfer, docstring of
    trtllm_batch_decode_with_kv_cache_mla).
    """

    def __init__(self, case: Case, bench: Bench, name: str = "workspace_buffer") -> None:
        self._state = case.workspace
        self._bench, self._name = bench, name
        self._kept: torch.Tensor | None = None

    def take(self, need: WorkspaceBytes) -> torch.Tensor:
        """Return a uint8 workspace of at least `need`."""
        if self._state is Workspace.FRESH:
            return self._new(need)
        if self._kept is None or self._kept.numel() < need.total:
            self._kept = self._new(need)
        return self._kept

    def _new(self, need: WorkspaceBytes) -> torch.Tensor:
        workspace = self._bench.memory.tensor(self._name, (need.total,), torch.uint8, fill=Fill.ZEROS)
        if self._state is Workspace.DIRTY:
            workspace[need.semaphores :].fill_(NAN_BYTE)
        return workspace
