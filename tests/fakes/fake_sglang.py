"""Stands for a source tree of SGLang: the names that a backend needs, and no code of SGLang's."""

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from attnfuzz.kernels.sglang import backends
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case import Case, KvView

_TREE = Path(__file__).with_name("sglang_tree")
_MHA = Path("python", "sglang", "srt", "layers", "attention", "trtllm_mha_backend.py")


def copy_tree(folder: Path) -> Path:
    """The tree, where no repository's tags are taken for its version. Its backend is right."""
    return Path(shutil.copytree(_TREE, folder))


def plan_for_the_padded_batch(tree: Path) -> None:
    """Make the mistake of SGLang 0.5.9 (PR 21649): the context kernel is given the batch as it was padded."""
    file = tree / _MHA
    text = file.read_text()
    right, wrong = "batch_size=plan.cu_q.shape[0] - 1", "batch_size=forward_batch.batch_size"
    assert right in text
    file.write_text(text.replace(right, wrong))


def on_release(case: AnyCase, backend: str) -> AnyCase:
    """A case as it is on the backend of a release, whose pools are token-major."""
    views = {"views": replace(case.views, kv=KvView.TOKEN_MAJOR)} if isinstance(case, Case) else {}
    return case.having(backend=backend, **views)


def need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have backends not ask for what only SGLang itself imports."""
    monkeypatch.setattr(backends, "NEEDS", ())
