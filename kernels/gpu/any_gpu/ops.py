"""The native kernels' functions on a GPU: the same arguments, rejections and results, with another library.

The library (attention.cu) is slow: a block computes row after row of one request and head. Q, K, V, outputs, workspace
and metadata are on one GPU. Calls go to torch's current stream, read no metadata on the host, and allocate nothing if
`out`, and `lse` if requested, are given: they can be captured in a graph. Metadata is trusted as the native kernels
trust it, so errors in it cause wild accesses of the GPU. During a call, no other thread may call a native kernel: it
would get this library.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
import tvm_ffi

from attnfuzz.kernels.cuda import nvcc
from attnfuzz.kernels.gpu.states import FIXUP, FIXUP_SOURCE, MERGE_STATE_IN_PLACE
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.interface.ops_table import OpsTable, WorkspaceBytes
from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import NATIVE

_HERE: Final = Path(__file__).parent

KERNEL: Final = _HERE / "attention.cu"

EXPORTS: Final = tuple(path for path in build.sources() if path.name in ("attention_exports.cpp", "tensors.cpp"))
"""The interface for Python, which unpacks tensors on the host: that of the native kernels."""

SOURCES: Final = (KERNEL, *EXPORTS, _HERE / "attend_row.h", *(path for path in build.sources() if path.suffix == ".h"))
"""All files of the library."""


def library() -> tvm_ffi.Module:
    """Return the compiled kernels, by the names in the native library. Raises as `nvcc.build` does."""
    return nvcc.load(*SOURCES)


def prepare(progress: Callable[[str], None]) -> None:
    """Compile all kernels of this project in `ANY_GPU`, if this machine has not yet; creates no CUDA context.

    Raises:
        NoCompiler, BuildFailed: as `nvcc.build`.

    """
    nvcc.build(SOURCES, progress=progress)
    nvcc.build([FIXUP_SOURCE], progress=progress)


def _on_gpu(op: Op) -> Op:
    """Bind a function of the native kernels to this library."""

    @functools.wraps(op.function)
    def function(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("kv_cache_sf") is not None:
            raise NotImplementedError("kv_cache_sf is unsupported: these kernels read no tensors of scales")
        with torch.cuda.device_of(query), build.replaced(library()):
            return op.function(query, *args, **kwargs)

    return replace(op, function=function)


ANY_GPU: Final = OpsTable(
    decode=_on_gpu(NATIVE.decode),
    context=_on_gpu(NATIVE.context),
    ragged=_on_gpu(NATIVE.ragged),
    mla_decode=_on_gpu(NATIVE.mla_decode),
    merge_state_in_place=MERGE_STATE_IN_PLACE,
    fixup=FIXUP,
    # Nothing is split. A workspace is still required, of any size and contents.
    decode_workspace=lambda **_: WorkspaceBytes(0, 0),
    prefill_workspace=WorkspaceBytes(0, 0),
    prepare=prepare,
)
"""This project's kernels on any GPU. merge_state_in_place is FlashInfer's, which runs on every GPU."""
