"""Imports of a release's layer of latent attention on a machine without a GPU."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final
from unittest import mock

import torch

from attnfuzz.kernels.releases.imports import imported
from attnfuzz.kernels.releases.release import Release
from attnfuzz.kernels.vllm.mla.kernels import FA_VERSIONS, flash_attn_varlen_func

_FLASH_ATTN: Final = "vllm.vllm_flash_attn"


def install_packages(release: Release) -> None:
    """Put stand-ins where the release's layers import packages that are compiled for GPUs, or not installed."""
    _install_flash_attn()
    if importlib.util.find_spec("regex") is None:
        # The expressions that are compiled at import are those of Python's own module too (0.33.0: ir/op.py:42).
        sys.modules["regex"] = re
    # Packages of others in the wheel, which are not unpacked (0.22.1: utils/import_utils.py:415).
    _install("vllm.third_party", {})
    rocm: Any = imported(release, "vllm._aiter_ops").rocm_aiter_ops
    for name in ("is_fp4bmm_enabled", "is_fp8bmm_enabled", "is_linear_fp8_enabled"):
        setattr(rocm, name, staticmethod(lambda: False))
    # Without graphs that break off, it returns the function (0.33.0: compilation/breakable_cudagraph.py).
    imported(release, "vllm.compilation.breakable_cudagraph").eager_break_during_capture = lambda function: function


def _install_flash_attn() -> None:
    """Stand for the package that vLLM compiles from FlashAttention."""
    members = {
        "flash_attn_varlen_func": flash_attn_varlen_func,
        "is_fa_version_supported": lambda version: version in FA_VERSIONS,
        "fa_version_unsupported_reason": lambda version: None if version in FA_VERSIONS else "not on this GPU",
        # Nothing that is driven here calls them.
        "get_scheduler_metadata": None,
        "compile_flash_attn_varlen_func_from_specs": None,
    }
    for name in (_FLASH_ATTN, f"{_FLASH_ATTN}.flash_attn_interface"):
        _install(name, members)


def _install(name: str, members: dict[str, Any]) -> None:
    """Put a package with these members, and no modules, where a module is imported."""
    package = ModuleType(name)
    package.__path__ = []
    vars(package).update(members)
    sys.modules[name] = package


@contextmanager
def on_the_cpu() -> Iterator[None]:
    """Have a module's own buffers on the CPU (0.20.2: v1/attention/backends/mla/flashinfer_mla.py:99)."""
    zeros = torch.zeros

    def elsewhere(*args: Any, **kwargs: Any) -> torch.Tensor:
        made: torch.Tensor = zeros(*args, **{**kwargs, "device": "cpu"})
        return made

    with mock.patch.object(torch, "zeros", elsewhere):
        yield
