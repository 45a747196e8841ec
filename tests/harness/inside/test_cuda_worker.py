"""What a nursery loads for workers on a GPU, and the case that a worker judges before it is ready.

What else workers on a GPU begin with is tried in tests/gpu.
"""

import importlib
import os

import pytest
import torch

from attnfuzz.harness.inside import cuda_worker
from attnfuzz.harness.inside.cuda_worker import judge_one
from attnfuzz.harness.workers.gpu_gone import GpuGone
from attnfuzz.reference.device import Device
from attnfuzz.reference.user_error import UserError


@pytest.mark.parametrize("visible", [None, "", "GPU-00"])
@pytest.mark.parametrize("installed", [True, False])
def test_flashinfer_is_imported_with_no_gpu_in_sight(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, *, installed: bool
) -> None:
    seen = []

    def imported(name: str) -> None:
        seen.append((name, os.environ["CUDA_VISIBLE_DEVICES"]))
        if not installed:
            raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", imported)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    cuda_worker.preload()
    assert seen == [("flashinfer", "")]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == visible


def test_it_is_judged_and_passes() -> None:
    verdict = judge_one(Device.CPU)
    assert (verdict.observations, verdict.unsupported, verdict.rows) == ((), None, 1)
    assert min(verdict.seconds.values()) > 0


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            "No CUDA GPUs are available",
            GpuGone,
            "the GPU does not answer: no CUDA context can be created (No CUDA GPUs",
        ),
        ("CUDA error: unknown error\nCUDA kernel errors ...", GpuGone, "can be created (CUDA error: unknown error)"),
        ("CUDA error: out of memory", cuda_worker.CannotBegin, "the GPU has no memory for a worker: free some"),
    ],
)
def test_a_context_that_cannot_be_created_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, error: str, kind: type[UserError], words: str
) -> None:
    def refuse() -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(torch.cuda, "init", refuse)
    with pytest.raises(kind) as raised:
        cuda_worker.begin()
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
