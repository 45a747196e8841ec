"""Compiling FlashInfer's modules before a run, and a record of those that can't be compiled."""

import contextlib
import functools
import importlib
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import tvm_ffi

from attnfuzz.kernels.building.library_cache import BuildFailed
from attnfuzz.kernels.gpu import build_record
from attnfuzz.kernels.gpu.build_record import ARCH_LIST, Built, Module
from attnfuzz.kernels.gpu.compilation import BuildLine

LIMIT_SECONDS = 900.0
"""A module whose compilers finish no file for this long is given up: the longest files take two minutes (FA3)."""

_MESSAGE_LINES = 5


def build(wanted: Iterable[Module], progress: Callable[[str], None]) -> dict[str, str]:
    """Compile missing modules in parallel. Returns those that can't be compiled, by name, with the reason.

    Fast if there is nothing to do, and creates no CUDA context in this process. Raises BuildFailed.
    """
    unique = tuple(dict.fromkeys(wanted))
    for line in building(unique):
        progress(line)
    return rejected(unique)


def building(wanted: Iterable[Module]) -> Iterator[str]:
    """Compile missing modules in parallel, as `build` does. Yields lines of progress, with counts."""
    todo = unbuilt(dict.fromkeys(wanted))
    if not todo:
        return
    start = time.monotonic()
    yield f"compiling {len(todo)} modules with nvcc, {jobs()} files at a time (once; it can take minutes)"
    for done, line in enumerate(compile_all(todo, archs=build_record.architectures()), start=1):
        result = line.built.reason and f"can't be compiled: {line.built.reason}"
        yield f"{done} of {len(todo)}, {time.monotonic() - start:.0f} s: {line.name} {result or 'is there'}"


def unbuilt(modules: Iterable[Module]) -> list[Module]:
    """Return the `modules` that `build` would try: those neither recorded as built nor as impossible."""
    known = build_record.read(build_record.architectures())
    return [each for each in modules if each.name not in known or not known[each.name].settled]


def rejected(modules: Iterable[Module]) -> dict[str, str]:
    """Return the `modules` whose last build failed, by name, with the reason."""
    known = build_record.read(build_record.architectures())
    return {each.name: known[each.name].reason for each in modules if each.name in known and known[each.name].reason}


def compile_all(
    modules: Sequence[Module], *, archs: str, parallel: int | None = None, limit: float = LIMIT_SECONDS
) -> Iterator[BuildLine]:
    """Compile in a separate process, `parallel` files at a time. Yields each module's result when it is ready.

    Modules that are already compiled cost little. Results are recorded for `rejected`. `archs` are FlashInfer's names
    of architectures ("9.0a 10.0a"). Raises BuildFailed if the process fails, for example to import FlashInfer.
    """
    # Without a visible GPU, ARCH_LIST determines the targets.
    environment = {**os.environ, ARCH_LIST: archs, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "attnfuzz.kernels.gpu.compilation", str(parallel or jobs()), str(limit)]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            # A process that ended at once is reported below.
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(pickle.dumps(tuple(modules)))
            results: dict[str, Built] = {}
            for line in process.stdout:
                one = msgspec.json.decode(line, type=BuildLine)
                results[one.name] = one.built
                build_record.add(archs, {one.name: one.built})
                yield one
        except BaseException:
            # It ends its compilers first.
            process.terminate()
            raise
        if len(results) < len(modules):
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-_MESSAGE_LINES:]
            raise BuildFailed("compiling FlashInfer's modules failed:\n" + "\n".join(last or ["(no output)"]))


def jobs() -> int:
    """Return the number of files to compile at a time: $MAX_JOBS, which FlashInfer uses as well, or one per core."""
    named = os.environ.get("MAX_JOBS", "")
    return int(named) if named.isdecimal() and int(named) else len(os.sched_getaffinity(0))


def load(modules: Iterable[Module]) -> None:
    """Load and keep the libraries of the compiled `modules`: FlashInfer then loads them instantly."""
    known = build_record.read(build_record.architectures())
    for module in modules:
        built = known.get(module.name)
        if built is not None and built.library:
            # The launch will report the error.
            with contextlib.suppress(OSError, RuntimeError):
                _library(built.library)


def trust_the_cache() -> None:
    """Make FlashInfer load its cache like modules compiled ahead of time: without ninja, and without a lock.

    Otherwise ninja checks all headers of a module at its first use (0.7.2, JitSpecNvcc.try_load in jit/core.py). The
    modules of workers were compiled before they started (`modules.build`); others are still compiled. If a package has
    modules compiled ahead of time, those are used, and nothing is changed.
    """
    environment: Any = importlib.import_module("flashinfer.jit.env")
    if not environment.FLASHINFER_AOT_DIR.exists():
        environment.FLASHINFER_AOT_DIR = environment.FLASHINFER_JIT_DIR


@functools.cache
def _library(path: str) -> tvm_ffi.Module:
    return tvm_ffi.load_module(path)
