"""The two workspaces of a wrapper: partial results, which are floats, and its plan, which is integers."""

from dataclasses import dataclass

import torch

from attnfuzz.kernels.backend import Bench, Fill
from attnfuzz.kernels.workspace import NAN_BYTE
from attnfuzz.reference.case import Case, Workspace

_ALIGNMENT = 16
"""Bytes: flashinfer.utils._check_workspace_buffer_alignment rejects less."""


@dataclass(frozen=True)
class WorkspaceNeed:
    """Bytes that a plan needs of each workspace."""

    floats: int
    ints: int


RECOMMENDED = WorkspaceNeed(floats=128 << 20, ints=8 << 20)
"""For releases and kernels that can't be asked: the size that the constructors' docstrings recommend, and the size of
the integer workspace that the constructors make."""


class Workspaces:
    """Workspaces of exactly what was needed at most so far, in guarded memory; sizes are rounded up to 16 bytes.

    They are replaced when a plan needs more. What they hold at first is zero, or NaN if the case wants them DIRTY and
    nobody asks for zeros. BatchDecodeWithPagedKVCacheWrapper asks for floats that are zero at first use (docstring of
    its constructor); those of prefill are only said to be reserved.
    """

    def __init__(self, case: Case, bench: Bench, *, zero_floats: bool) -> None:
        self._bench = bench
        self._dirty_ints = case.workspace is Workspace.DIRTY
        self._dirty_floats = self._dirty_ints and not zero_floats
        self.floats = self._new("float_workspace_buffer", 0, dirty=False)
        self.ints: torch.Tensor | None = None

    def provide(self, need: WorkspaceNeed) -> bool:
        """Make room; whether another buffer stands for what was there."""
        changed = False
        if self.floats.numel() < need.floats:
            self.floats = self._new("float_workspace_buffer", need.floats, dirty=self._dirty_floats)
            changed = True
        if self.ints is None or self.ints.numel() < need.ints:
            self.ints = self._new("int_workspace_buffer", need.ints, dirty=self._dirty_ints)
            changed = True
        return changed

    def _new(self, name: str, nbytes: int, *, dirty: bool) -> torch.Tensor:
        size = -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        workspace = self._bench.memory.tensor(name, (size,), torch.uint8, fill=Fill.ZEROS)
        if dirty:
            workspace.fill_(NAN_BYTE)
        return workspace
