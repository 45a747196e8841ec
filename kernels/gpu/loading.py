"""Loading what FlashInfer compiled, before a first launch would have to."""

import contextlib
import functools
import importlib
from collections.abc import Iterable
from typing import Any

import tvm_ffi

from attnfuzz.kernels.gpu import build_record
from attnfuzz.kernels.gpu.module import Module


def load(modules: Iterable[Module]) -> None:
    """Load the libraries of those modules that are compiled, and keep them: FlashInfer then loads them in no time."""
    known = build_record.read(build_record.architectures())
    for module in modules:
        built = known.get(module.name)
        if built is not None and built.library:
            # Whoever launches it is told.
            with contextlib.suppress(OSError, RuntimeError):
                _library(built.library)


def trust_the_cache() -> None:
    """Let FlashInfer load what is in its cache as what was compiled ahead of time: without ninja, and without a lock.

    At a module's first use it has ninja look at all of its headers again (0.7.2, JitSpecNvcc.try_load in jit/core.py).
    What workers use was compiled before they started (`modules.build`); what was not is compiled as ever. Where a
    package brings modules that were compiled ahead of time, those are used, and nothing is changed.
    """
    environment: Any = importlib.import_module("flashinfer.jit.env")
    if not environment.FLASHINFER_AOT_DIR.exists():
        environment.FLASHINFER_AOT_DIR = environment.FLASHINFER_JIT_DIR


@functools.cache
def _library(path: str) -> tvm_ffi.Module:
    return tvm_ffi.load_module(path)
