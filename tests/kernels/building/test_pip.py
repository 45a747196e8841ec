"""Looking for pip."""

import sys
from types import SimpleNamespace

import pytest

from attnfuzz.kernels.building.pip import has_pip


def test_no_hook_of_imports_learns_that_pip_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    hook = SimpleNamespace(find_spec=lambda name, *_: asked.append(name))
    monkeypatch.setattr(sys, "meta_path", [hook, *sys.meta_path])
    has_pip()
    assert "pip" not in asked
