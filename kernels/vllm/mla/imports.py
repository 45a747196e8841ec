"""Imports of a release's layer of latent attention on a machine without a GPU."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from attnfuzz.kernels.releases.imports import imported
from attnfuzz.kernels.releases.release import Release


def install_packages(release: Release) -> None:
    """Install stand-ins for packages that the release's layers import, but that are not unpacked or not installed."""
    if importlib.util.find_spec("regex") is None:
        # The expressions that are compiled at import are valid in Python's own module too (0.33.0: ir/op.py:42).
        sys.modules["regex"] = re
    # Third-party packages in the wheel, which are not unpacked (0.22.1: utils/import_utils.py:415).
    _install("vllm.third_party")
    rocm: Any = imported(release, "vllm._aiter_ops").rocm_aiter_ops
    for name in ("is_fp4bmm_enabled", "is_fp8bmm_enabled", "is_linear_fp8_enabled"):
        setattr(rocm, name, staticmethod(lambda: False))
    # If breakable graphs are disabled, it returns the function unchanged (0.33.0: compilation/breakable_cudagraph.py).
    imported(release, "vllm.compilation.breakable_cudagraph").eager_break_during_capture = lambda function: function


def _install(name: str) -> None:
    """Install an empty package under this name."""
    package = ModuleType(name)
    package.__path__ = []
    sys.modules[name] = package


@contextmanager
def on_the_cpu() -> Iterator[None]:
    """Let modules allocate their buffers on the CPU (0.20.2: v1/attention/backends/mla/flashinfer_mla.py:99)."""
    zeros = torch.zeros

    def elsewhere(*args: Any, **kwargs: Any) -> torch.Tensor:
        made: torch.Tensor = zeros(*args, **{**kwargs, "device": "cpu"})
        return made

    with mock.patch.object(torch, "zeros", elsewhere):
        yield
