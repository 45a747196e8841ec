"""Compiling FlashInfer's modules before anything runs, and knowing those that can't be compiled."""

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

from attnfuzz.kernels.gpu import build_record
from attnfuzz.kernels.gpu.build_record import ARCH_LIST, Built, Module
from attnfuzz.kernels.gpu.compilation import BuildLine
from attnfuzz.kernels.library_cache import BuildFailed

LIMIT_SECONDS = 900.0
"""A module whose compilers finish no file for so long is given up: the longest files take about two minutes (FA3)."""

_MESSAGE_LINES = 5


def build(wanted: Iterable[Module], progress: Callable[[str], None]) -> dict[str, str]:
    """Compile what is not there yet, in parallel; the modules that can't be compiled, by name, with the reason.

    Quick where there is nothing to do, and creates no CUDA context in this process. Raises BuildFailed.
    """
    unique = tuple(dict.fromkeys(wanted))
    if not unique:
        return {}
    archs = build_record.architectures()
    todo = unbuilt(unique)
    if todo:
        start = time.monotonic()
        progress(f"compiling {len(todo)} modules with nvcc, {jobs()} files at a time (once; it can take minutes)")
        for done, told in enumerate(compile_all(todo, archs=archs), start=1):
            came = told.built.reason and f"can't be compiled: {told.built.reason}"
            progress(f"{done} of {len(todo)}, {time.monotonic() - start:.0f} s: {told.name} {came or 'is there'}")
    return rejected(unique)


def unbuilt(modules: Iterable[Module]) -> list[Module]:
    """Those of `modules` that are not known to be there, or to be impossible: what `build` would try."""
    known = build_record.read(build_record.architectures())
    return [each for each in modules if each.name not in known or not known[each.name].settled]


def rejected(modules: Iterable[Module]) -> dict[str, str]:
    """Those of `modules` of which a build was tried and failed, by name, with the reason."""
    known = build_record.read(build_record.architectures())
    return {each.name: known[each.name].reason for each in modules if each.name in known and known[each.name].reason}


def compile_all(
    modules: Sequence[Module], *, archs: str, parallel: int | None = None, limit: float = LIMIT_SECONDS
) -> Iterator[BuildLine]:
    """Compile in a process of its own, `parallel` files at the same time; what comes of each module, as it comes.

    A module that is there already costs little. All is remembered for `rejected`. `archs` are FlashInfer's names of
    architectures ("9.0a 10.0a"). Raises BuildFailed if the process fails: FlashInfer can't be imported, for example.
    """
    # Without a GPU in sight it is told by ARCH_LIST what to compile for.
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
            # One that ended at once is told of below.
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(pickle.dumps(tuple(modules)))
            told: dict[str, Built] = {}
            for line in process.stdout:
                one = msgspec.json.decode(line, type=BuildLine)
                told[one.name] = one.built
                build_record.add(archs, {one.name: one.built})
                yield one
        except BaseException:
            # It ends its compilers before it goes.
            process.terminate()
            raise
        if len(told) < len(modules):
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-_MESSAGE_LINES:]
            raise BuildFailed("compiling FlashInfer's modules failed:\n" + "\n".join(last or ["(it said nothing)"]))


def jobs() -> int:
    """Files to compile at the same time: $MAX_JOBS, which FlashInfer heeds as well, else one for each core."""
    named = os.environ.get("MAX_JOBS", "")
    return int(named) if named.isdecimal() and int(named) else len(os.sched_getaffinity(0))


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
