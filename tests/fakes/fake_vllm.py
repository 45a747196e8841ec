"""Stands for a source tree of vLLM: the names that its FlashInfer backend needs, and no code of vLLM's."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from attnfuzz.kernels.vllm import backends, loader

_TREE = Path(__file__).with_name("vllm_tree")
_BACKEND = Path("vllm", "v1", "attention", "backends", "flashinfer.py")


def copy_tree(folder: Path) -> Path:
    """The tree, whose backend is right."""
    return Path(shutil.copytree(_TREE, folder))


def edit(tree: Path, right: str, wrong: str) -> None:
    """Replace one text of the backend in a tree."""
    file = tree / _BACKEND
    text = file.read_text()
    assert text.count(right) == 1
    file.write_text(text.replace(right, wrong))


def need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have backends not ask for what only vLLM itself imports."""
    monkeypatch.setattr(backends, "NEEDS", ())


@contextmanager
def no_release(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the block be a process that has imported nothing of vLLM, and leave none of it behind."""
    before, finders = dict(sys.modules), list(sys.meta_path)
    monkeypatch.setattr(loader, "_loaded", [])
    for name in before:
        if name.partition(".")[0] == "vllm":
            del sys.modules[name]
    try:
        yield
    finally:
        sys.meta_path[:] = finders
        for name in set(sys.modules) - set(before):
            if name.partition(".")[0] == "vllm":
                del sys.modules[name]
