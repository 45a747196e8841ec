"""The compiler of NVIDIA's CUDA toolkit."""

import os
import shutil
from pathlib import Path

from attnfuzz.kernels.building.library_cache import NoCompiler

_USUAL_HOME = Path("/usr/local/cuda")


def nvcc() -> Path:
    """Find the compiler of tvm_ffi and FlashInfer: $CUDA_HOME's, else the one on PATH, else that of the usual folder.

    Raises NoCompiler (flashinfer/jit/cpp_ext.py: get_cuda_path; tvm_ffi/cpp/extension.py: _find_cuda_home).
    """
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = None if home else shutil.which("nvcc")
    command = Path(found) if found else Path(home or _USUAL_HOME) / "bin" / "nvcc"
    if not command.exists():
        named = f"CUDA_HOME is {home}, which has no bin/nvcc" if home else "no nvcc on PATH"
        raise NoCompiler(f"{named}: install NVIDIA's CUDA toolkit or set CUDA_HOME to its folder")
    return command


def missing() -> str | None:
    """Return the reason that nothing can be compiled for a GPU here, in one line; None if it can."""
    try:
        nvcc()
    except NoCompiler as reason:
        return str(reason)
    return None
