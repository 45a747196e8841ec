"""The workspace: what it holds, and when it is another."""

from collections.abc import Callable

import msgspec
import pytest
import torch
from small_cases import HEADS, step

from attnfuzz.kernels.interface.backend import Bench
from attnfuzz.kernels.interface.ops_table import WorkspaceBytes
from attnfuzz.kernels.planning.workspace import SharedWorkspace
from attnfuzz.reference.case import Case, Mode, Workspace

CASE = Case(backend="trtllm_mha", geometry=HEADS, steps=(step(Mode.DECODE, (1, 9)),))
SMALL, LARGE = WorkspaceBytes(16, 32), WorkspaceBytes(16, 64)


def shared(state: Workspace, bench_of: Callable[..., Bench]) -> SharedWorkspace:
    case = msgspec.structs.replace(CASE, workspace=state)
    return SharedWorkspace(case, bench_of(case))


def test_a_fresh_workspace_is_new_for_each_launch_and_has_its_size(bench_of: Callable[..., Bench]) -> None:
    workspace = shared(Workspace.FRESH, bench_of)
    first, second = workspace.take(LARGE), workspace.take(SMALL)
    assert (first.numel(), second.numel()) == (80, 48)
    assert first.data_ptr() != second.data_ptr()
    assert not first.any()
    assert not second.any()


@pytest.mark.parametrize("state", [Workspace.REUSED, Workspace.DIRTY])
def test_a_used_workspace_is_kept_until_one_needs_more(state: Workspace, bench_of: Callable[..., Bench]) -> None:
    workspace = shared(state, bench_of)
    first = workspace.take(SMALL)
    assert workspace.take(WorkspaceBytes(0, 0)) is first
    larger = workspace.take(LARGE)
    assert larger.numel() == 80
    assert workspace.take(SMALL) is larger


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_a_dirty_workspace_is_nan_behind_zero_semaphores(dtype: torch.dtype, bench_of: Callable[..., Bench]) -> None:
    dirty = shared(Workspace.DIRTY, bench_of).take(SMALL)
    assert not dirty[:16].any()
    assert bool(dirty[16:].view(dtype).float().isnan().all())
