"""Nurseries that are forked off a process that has imported FlashInfer, and workspaces that are small."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from forked_python import forked_processes

from attnfuzz.kernels.gpu.direct import cudnn
from attnfuzz.kernels.gpu.wrappers import wrapper
from attnfuzz.kernels.interface.ops_table import WorkspaceBytes


@pytest.fixture(scope="module", autouse=True)
def _processes() -> Iterator[None]:
    """Without it, each worker for a file of backends imports FlashInfer: 3 s of CPU time.

    On a machine with a GPU they do: importing FlashInfer creates a context there, after which no process may fork.
    """
    also = () if torch.cuda.is_available() or find_spec("flashinfer") is None else ("flashinfer",)
    with forked_processes(*also):
        yield


@pytest.fixture(autouse=True)
def _small_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make workspaces small whose size follows from nothing: around a launch, 128 MiB are filled, copied, compared."""
    monkeypatch.setattr(wrapper, "RECOMMENDED", wrapper.WorkspaceNeed(floats=1 << 18, ints=1 << 16))
    monkeypatch.setattr(cudnn, "_WORKSPACE", WorkspaceBytes(semaphores=0, scratch=1 << 18))
