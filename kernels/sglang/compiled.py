"""Kernels that a release compiles at their first use (load_jit): called by name, or compiled ahead of time."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.releases.stand_ins import answered_by
from attnfuzz.kernels.sglang.loader import Loaded, load, on_hopper
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.kernels.sglang.stand_ins import replace_calls

_PLACES: Final = ("sglang.kernels.ops.kvcache", "sglang.jit_kernel")
"""The packages of these kernels: from 0.5.17 on, and before."""

_LIBRARY: Final = "sgl_kernel_jit_"
"""Prefix of the names of libraries that load_jit compiles (0.5.9 jit_kernel/utils.py:163)."""


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel: the names of its module, of the function that runs it, and of the function that compiles it for widths.

    The latter returns whether it succeeded, and logs a warning with the reason if not.
    """

    file: str
    function: str
    compiles: str

    def module(self, release: str, widths: tuple[int, int]) -> Module:
        """Return the library for rows of two widths, in bytes."""
        name = f"{release}: {self.function} of {widths[0]} and {widths[1]} bytes"
        return Module(name, partial(Compilation, release, self, widths))

    def found(self, loaded: Loaded) -> Any:
        """Return the module of a release that has the kernel. Raises ReleaseError."""
        there = [f"{place}.{self.file}" for place in _PLACES if loaded.has(f"{place}.{self.file}")]
        return loaded.module((there or [f"{_PLACES[0]}.{self.file}"])[0])


class _AtOnce:
    """The kernels below a function of a release that is launched itself: they run within its launch."""

    flashinfer = None

    def call(self, function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Raise RuntimeError."""
        raise RuntimeError(f"{function} of FlashInfer, below a kernel that stores keys and values")

    def op(self, function: str) -> Op:
        """Raise RuntimeError."""
        raise RuntimeError(f"{function}, below a kernel that stores keys and values")

    def bound(self, function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Raise RuntimeError."""
        raise RuntimeError(f"{function} of FlashInfer, below a kernel that stores keys and values")

    def launch(self, op: Op, arguments: dict[str, Any]) -> Any:
        """Run the op."""
        return op.function(**arguments)


def run_kernel(release: str, kernel: CompiledKernel, /, **arguments: Any) -> None:
    """Call a release's function. Imports the release, if this process has not. Raises ReleaseError."""
    loaded = load(release_of(SGLANG, release), hopper=True)
    function = getattr(kernel.found(loaded), kernel.function)
    # The library is cached, and shared with sessions of attention, which launch through the session.
    replace_calls()
    # Servers also disable gradients, and then skip torch's dispatcher (0.5.23 srt/utils/custom_op.py:126).
    with answered_by(_AtOnce()), torch.no_grad():
        function(**arguments)


class Compilation:
    """The compilation of a kernel for two widths, with the interface of FlashInfer's JitSpec (`gpu.compilation`)."""

    is_aot = False

    def __init__(self, release: str, kernel: CompiledKernel, widths: tuple[int, int]) -> None:
        self._release, self._kernel, self._widths = release, kernel, widths
        self._library = Path(f"{_LIBRARY}{kernel.file}")
        self.sources = (f"{kernel.file}.cuh",)

    def get_library_path(self) -> Path:
        """Return the path of the compiled library."""
        return self._library

    def build(self, *, verbose: bool, need_lock: bool) -> None:
        """Compile the kernel, or find it in the release's cache. Raises RuntimeError with the compiler's output."""
        # The release locks its cache itself.
        del verbose, need_lock
        loaded = load(release_of(SGLANG, self._release), hopper=True)
        module = self._kernel.found(loaded)
        with on_hopper(), _warnings_of(module.__name__) as warnings:
            compiled = self._compiled(getattr(module, self._kernel.compiles))
        if not compiled:
            raise RuntimeError("\n".join(warnings.lines) or f"{self._release} rejects these widths")
        self._library = _mapped()

    def _compiled(self, compiles: Callable[..., bool]) -> bool:
        # Before 0.5.17, rows of store_cache have one width.
        return compiles(*self._widths[: len(inspect.signature(compiles).parameters)])


class _Warnings(logging.Handler):
    """Collects the text of warnings."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect a record."""
        self.lines.append(record.getMessage())


@contextmanager
def _warnings_of(name: str) -> Iterator[_Warnings]:
    """Collect the warnings of a module of the release."""
    logger, warnings = logging.getLogger(name), _Warnings()
    level = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(warnings)
    try:
        yield warnings
    finally:
        logger.removeHandler(warnings)
        logger.setLevel(level)


def _mapped() -> Path:
    """Return the library of load_jit that this process has loaded. Raises RuntimeError if there is none."""
    paths = [line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()]
    for path in map(Path, paths):
        if path.name.startswith(_LIBRARY):
            return path
    raise RuntimeError(f"no library {_LIBRARY}*.so was loaded")
