"""FlashInfer's modules as the core sees them: compiled before jobs start, and loaded by workers."""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping

from attnfuzz.kernels.cuda import nvcc
from attnfuzz.kernels.cuda.visible import Arch, Gpu, no_gpu_visible, visible
from attnfuzz.kernels.gpu import build_record, modules
from attnfuzz.kernels.gpu.build_record import Compiled
from attnfuzz.kernels.gpu.catalogue import GPU_BACKENDS
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.quick import built_buckets, cost, only_built, variants
from attnfuzz.kernels.interface.backend import Backend

_CUTE_ARCH = "CUTE_DSL_ARCH"
_PRELUDE = """
import flashinfer.jit.env as environment

if not environment.FLASHINFER_AOT_DIR.exists():
    environment.FLASHINFER_AOT_DIR = environment.FLASHINFER_JIT_DIR
del environment
"""
"""That of `modules.trust_the_cache`: ninja would compile modules again that come from an archive."""


def compiling(backends: Iterable[Backend]) -> Iterator[str]:
    """Compile the missing modules of `backends` at once. Yields lines of progress. Raises BuildFailed."""
    return modules.building(module for each in backends if isinstance(each, Compiled) for module in each.modules())


def lacks_modules(backend: Backend) -> bool:
    """Return whether a backend needs modules and has none."""
    if not isinstance(backend, Compiled) or not backend.modules():
        return False
    ready = build_record.ready()
    if isinstance(backend, GpuBackend):
        return not built_buckets(backend, ready)
    return any(module.name not in ready for module in backend.modules())


def limited(backend: Backend) -> Backend:
    """Return a backend with the geometries whose modules are compiled; unchanged if it has none."""
    return only_built(backend, build_record.ready()) if isinstance(backend, GpuBackend) else backend


def compile_few(seconds: float, progress: Callable[[str], None]) -> None:
    """Compile the cheapest modules that a backend needs here, unless any module is compiled. Raises BuildFailed.

    They are given up if their compilers finish no file for `seconds`.
    """
    if build_record.ready():
        return
    parts = [part for each in GPU_BACKENDS if each.missing() is None for part in variants(each)]
    if parts:
        chosen = min((part.modules for part in parts), key=lambda needed: sum(map(cost, needed)))
        progress(f"compiling {', '.join(module.name for module in chosen)}")
        for _ in modules.compile_all(chosen, archs=build_record.architectures(), limit=seconds):
            pass


def environment() -> Mapping[str, str]:
    """Return the variables of a process that sees one of this process's GPUs.

    FlashInfer names its cache for all architectures that it sees: the modules were compiled for all GPUs. CuTe gets
    its architecture, too: FlashInfer's import reads it, and CuTe's query of the driver (nvidia-cutlass-dsl 4.8.1,
    base_dsl/env_manager.py, detect_gpu_arch) ended the process that forks workers by SIGSEGV on an H200.
    """
    variables = {build_record.ARCH_LIST: build_record.architectures()}
    if gpus := visible():
        variables[_CUTE_ARCH] = os.environ.get(_CUTE_ARCH) or _cute_arch(gpus[0])
    return variables


def _cute_arch(gpu: Gpu) -> str:
    # From Hopper on, only an architecture with this suffix has all instructions.
    suffix = "a" if float(gpu.capability) >= float(Arch.HOPPER) else ""
    return f"sm_{gpu.capability.replace('.', '')}{suffix}"


def preload() -> None:
    """Import FlashInfer before workers are forked, because it takes seconds.

    Its import asks torch for the GPU's features (0.7.2, kda_kernels/__init__.py). The architectures to compile for come
    from the environment.
    """
    # If FlashInfer is not installed, no backend needs it.
    with no_gpu_visible(), contextlib.suppress(ImportError):
        importlib.import_module("flashinfer")


def settle() -> None:
    """Make a worker that has a context, and its backends, load modules without ninja."""
    if "flashinfer" in sys.modules:
        modules.trust_the_cache()


def prelude(script: str) -> str:
    """Return Python that a fresh process runs before `script`, so that it loads modules without ninja."""
    return _PRELUDE if "import flashinfer" in script or "from flashinfer" in script else ""


def load_needs(backend: Backend) -> None:
    """Load the packages and compiled modules of a backend, which its cases would load one by one."""
    if isinstance(backend, Compiled):
        for package in getattr(backend, "needs", ()):
            importlib.import_module(package)
        for files in backend.libraries:
            nvcc.load(*files)
        modules.load(backend.modules())
