"""Compiling the native kernels at first use, into the cache.

There are two libraries: the kernels, and a second one in which mistakes can be planted (defects.h), which is compiled
on demand.
"""

import functools
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import tvm_ffi
import tvm_ffi.cpp

from attnfuzz.kernels.building import library_cache
from attnfuzz.kernels.building.library_cache import NoCompiler

FLAGS = ("-O3", "-ffp-contract=off", "-pthread")
FLAGS_WITH_DEFECTS = (*FLAGS, "-DATTNFUZZ_DEFECTS")
_NAME = "attnfuzz_native"
_UNITS = 4
"""Translation units. Reading the headers takes most of a small file's compilation, so that a unit includes several."""


def sources() -> tuple[Path, ...]:
    """Return the C++ files, headers included, in a fixed order."""
    return tuple(sorted(path for path in Path(__file__).parent.iterdir() if path.suffix in (".cpp", ".h")))


def compiler() -> str:
    """Return the C++ compiler command: $CXX, else the first of c++, g++, clang++ on PATH. Raises NoCompiler."""
    named = os.environ.get("CXX")
    candidates = (named,) if named else ("c++", "g++", "clang++")
    for command in candidates:
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return command
    missing = f"$CXX is {named!r}, which is not a command" if named else "no C++ compiler (c++, g++ or clang++) on PATH"
    raise NoCompiler(f"{missing}: install g++ (Debian: apt install g++, Fedora: dnf install gcc-c++) or set CXX")


def missing() -> str | None:
    """Return the reason that this machine can't compile the kernels, and the remedy, or None if it can."""
    try:
        compiler()
    except NoCompiler as reason:
        return str(reason)
    return None


def load(progress: Callable[[str], None] | None = None) -> tvm_ffi.Module:
    """Return the compiled kernels, built if they are not in the cache; `progress` gets a message about a build.

    Concurrent processes compile once. Raises NoCompiler or BuildFailed. Inside `replaced`, returns the replacement.
    """
    return _Loaded.replacement or _load(FLAGS, progress)


def compiled(progress: Callable[[str], None]) -> Path:
    """Return the file of the compiled kernels, which is built like by `load`, without loading it."""
    return _library(FLAGS, progress)


def load_with_defects(progress: Callable[[str], None] | None = None) -> tvm_ffi.Module:
    """Return the second library, like `load`: the same kernels, plus plant(name) and uproot_all()."""
    return _load(FLAGS_WITH_DEFECTS, progress)


@contextmanager
def replaced(module: tvm_ffi.Module) -> Iterator[None]:
    """Make `load` return `module`, in all threads of this process."""
    before, _Loaded.replacement = _Loaded.replacement, module
    try:
        yield
    finally:
        _Loaded.replacement = before


class _Loaded:
    """The modules of this process by their flags."""

    modules: ClassVar[dict[tuple[str, ...], tvm_ffi.Module]] = {}
    replacement: tvm_ffi.Module | None = None


def _load(flags: tuple[str, ...], progress: Callable[[str], None] | None) -> tvm_ffi.Module:
    if flags not in _Loaded.modules:
        _Loaded.modules[flags] = tvm_ffi.load_module(str(_library(flags, progress or (lambda _: None))))
    return _Loaded.modules[flags]


def _library(flags: tuple[str, ...], progress: Callable[[str], None]) -> Path:
    command = compiler()
    key = library_cache.key(sources(), command, _version(command), *flags)
    return library_cache.stored(f"{_NAME}-{key}", functools.partial(_compile, command, flags, progress))


@functools.cache
def _version(command: str) -> str:
    answer = subprocess.run([*shlex.split(command), "--version"], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise NoCompiler(f"{command!r} --version fails: install a working g++ or set CXX")
    return answer.stdout


def _compile(command: str, flags: tuple[str, ...], progress: Callable[[str], None], folder: str) -> str:
    files = [path for path in sources() if path.suffix == ".cpp"]
    units = [Path(folder) / f"unit_{number}.cpp" for number in range(_UNITS)]
    for number, unit in enumerate(units):
        unit.write_text("".join(f'#include "{path}"\n' for path in files[number::_UNITS]))
    which = "native kernels with planted defects" if flags == FLAGS_WITH_DEFECTS else "native kernels"
    build = functools.partial(
        tvm_ffi.cpp.build,
        _NAME,
        cpp_files=list(map(str, units)),
        extra_cflags=flags,
        extra_ldflags=["-pthread"],
        build_directory=folder,
    )
    return library_cache.compiled(f"the {which}", command, {"CXX": command}, build, progress)
