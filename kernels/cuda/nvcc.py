"""Compiles this project's own CUDA kernels at first use, into the cache of the native kernels."""

import functools
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import tvm_ffi
import tvm_ffi.cpp

from attnfuzz.kernels.building import library_cache
from attnfuzz.kernels.building.library_cache import NoCompiler
from attnfuzz.kernels.cuda import toolkit, visible

_ARCH_LIST = "TVM_FFI_CUDA_ARCH_LIST"


@functools.cache
def load(*files: Path) -> tvm_ffi.Module:
    """Load the module compiled for the visible GPUs, once per process. Files and errors are those of `build`."""
    return tvm_ffi.load_module(str(build(files)))


def build(
    files: Sequence[Path], *, archs: Sequence[str] = (), progress: Callable[[str], None] = lambda _: None
) -> Path:
    """Build the library from files if this machine has not built it before; creates no CUDA context.

    The first is a .cu file, whose name the library gets. Others may be .cpp files, or headers that these include: a
    change of any of them leads to a new build.
    `archs` are compute capabilities ("9.0", "10.0a"): by default those in $TVM_FFI_CUDA_ARCH_LIST, else those of the
    visible GPUs. Concurrent processes compile once. `progress` gets a message about a build.

    Raises:
        NoCompiler: there is no nvcc, or no GPU to compile for is known.
        BuildFailed: nvcc refused, or the cache can't be written.

    """
    command, wanted = toolkit.nvcc(), " ".join(archs) or _archs_here()
    name = files[0].stem
    key = library_cache.key(files, _version(command), wanted)
    return library_cache.stored(
        f"attnfuzz_{name}-{key}", functools.partial(_compile, command, name, files, wanted, progress)
    )


def _archs_here() -> str:
    named = os.environ.get(_ARCH_LIST)
    archs = named or " ".join(sorted({gpu.capability for gpu in visible.visible()}))
    if not archs:
        raise NoCompiler(f"no GPU is visible to compile for: set {_ARCH_LIST}, for example to 9.0")
    return archs


@functools.cache
def _version(command: Path) -> str:
    answer = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise NoCompiler(f"{command} --version fails: install NVIDIA's CUDA toolkit or set CUDA_HOME to its folder")
    return answer.stdout


def _compile(
    command: Path, name: str, files: Sequence[Path], archs: str, progress: Callable[[str], None], folder: str
) -> str:
    cuda, cpp = ([str(file) for file in files if file.suffix == suffix] for suffix in (".cu", ".cpp"))
    build = functools.partial(
        tvm_ffi.cpp.build,
        f"attnfuzz_{name}",
        cuda_files=cuda,
        cpp_files=cpp,
        backend="cuda",
        build_directory=folder,
    )
    return library_cache.compiled(f"{name}.cu for SM {archs}", str(command), {_ARCH_LIST: archs}, build, progress)
