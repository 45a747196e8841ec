"""What the tests of vLLM's releases share."""

from collections.abc import Iterator
from pathlib import Path

import fake_vllm
import pytest

from attnfuzz.kernels.releases.release import Release, release_of
from attnfuzz.kernels.vllm.project import VLLM


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A source tree whose backend is right, in a process that has no release."""
    fake_vllm.need_nothing(monkeypatch)
    with fake_vllm.no_release(monkeypatch):
        yield fake_vllm.copy_tree(tmp_path / "checkout")


@pytest.fixture
def release(tree: Path) -> Release:
    """The tree as a release."""
    return release_of(VLLM, f"vllm@{tree}")
