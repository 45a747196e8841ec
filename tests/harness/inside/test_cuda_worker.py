"""What a nursery loads for workers on a GPU; what they begin with is tried in tests/gpu."""

import importlib
import os

import pytest

from attnfuzz.harness.inside import cuda_worker


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
