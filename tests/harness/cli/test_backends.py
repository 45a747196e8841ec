"""What `attnfuzz backends` tells scripts."""

from collections.abc import Callable
from typing import Any

import pytest

from attnfuzz.harness.defaults import DEFAULT_BACKENDS
from attnfuzz.kernels.torch_sdpa import SdpaBackend


def test_scripts_get_the_names_of_what_runs_here_without_revisions(
    attnfuzz: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = attnfuzz("backends", "--runnable")
    assert ran.code == 0
    assert ran.out.split() == sorted(DEFAULT_BACKENDS)
    monkeypatch.setattr(SdpaBackend, "missing", lambda _: "no GPU")
    assert "torch_sdpa" not in attnfuzz("backends", "--runnable").out
