"""What a nursery loads for workers on a GPU, and the case that a worker judges before it is ready.

What else workers on a GPU begin with is tried in tests/gpu.
"""

import importlib
import os

import pytest

from attnfuzz.harness.inside import cuda_worker
from attnfuzz.harness.inside.cuda_worker import judge_one
from attnfuzz.reference.device import Device


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
