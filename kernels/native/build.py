"""Compiles the native kernels at first use, and caches them by content.

There are two libraries: the kernels, and a second one in which mistakes can be planted (defects.h), which is compiled
only if somebody asks for it. The cache is $ATTNFUZZ_CACHE, or attnfuzz/ in $XDG_CACHE_HOME, or ~/.cache/attnfuzz. An
entry's name is a hash of all that goes into it, so that entries never go stale and may be deleted at any time.
"""

import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import ninja
import tvm_ffi
import tvm_ffi.cpp

FLAGS = ("-O3", "-ffp-contract=off", "-pthread")
_WITH_DEFECTS = (*FLAGS, "-DATTNFUZZ_DEFECTS")
_NAME = "attnfuzz_native"
_OUTPUT_LINES = 20


class NoCompiler(RuntimeError):
    """There is no C++ compiler."""


class BuildFailed(RuntimeError):
    """The native kernels could not be compiled or stored."""


def sources() -> tuple[Path, ...]:
    """The C++ files, headers included, in a fixed order."""
    return tuple(sorted(path for path in Path(__file__).parent.iterdir() if path.suffix in (".cpp", ".h")))


def cache_folder() -> Path:
    """Where compiled kernels are kept."""
    own = os.environ.get("ATTNFUZZ_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnfuzz"


def compiler() -> str:
    """The command that compiles C++: $CXX, else the first of c++, g++, clang++ that is there. NoCompiler if none."""
    named = os.environ.get("CXX")
    candidates = (named,) if named else ("c++", "g++", "clang++")
    for command in candidates:
        words = shlex.split(command)
        if words and shutil.which(words[0]):
            return command
    missing = f"$CXX is {named!r}, which is not a command" if named else "no C++ compiler (c++, g++ or clang++) on PATH"
    raise NoCompiler(f"{missing}: install g++ (Debian: apt install g++, Fedora: dnf install gcc-c++) or set CXX")


def missing() -> str | None:
    """Why this machine can't compile the kernels, and what to do; None if it can."""
    try:
        compiler()
    except NoCompiler as reason:
        return str(reason)
    return None


def load(progress: Callable[[str], None] | None = None) -> tvm_ffi.Module:
    """The compiled kernels, built if this machine has not built them before; `progress` is told of a build.

    Any number of processes may ask at once: one compiles. Raises NoCompiler or BuildFailed. Inside of `replaced`, what
    was given there.
    """
    return _Loaded.replacement or _load(FLAGS, progress)


def load_with_defects(progress: Callable[[str], None] | None = None) -> tvm_ffi.Module:
    """The second library, as `load`: the same kernels, and plant(name) and uproot_all() for mistakes in later calls."""
    return _load(_WITH_DEFECTS, progress)


@contextmanager
def replaced(module: tvm_ffi.Module) -> Iterator[None]:
    """Let `load` give `module`, in all threads of this process."""
    before, _Loaded.replacement = _Loaded.replacement, module
    try:
        yield
    finally:
        _Loaded.replacement = before


class _Loaded:
    """The modules of this process by their flags, whatever callback the first caller gave."""

    modules: ClassVar[dict[tuple[str, ...], tvm_ffi.Module]] = {}
    replacement: tvm_ffi.Module | None = None


def _load(flags: tuple[str, ...], progress: Callable[[str], None] | None) -> tvm_ffi.Module:
    if flags not in _Loaded.modules:
        _Loaded.modules[flags] = tvm_ffi.load_module(str(_library(flags, progress or (lambda _: None))))
    return _Loaded.modules[flags]


def _library(flags: tuple[str, ...], progress: Callable[[str], None]) -> Path:
    command = compiler()
    folder = cache_folder()
    library = folder / f"{_NAME}-{_key(command, flags)}.so"
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(library.with_suffix(".lock")):
            if not library.exists():
                _compile(command, flags, library, progress)
    except OSError as error:
        raise BuildFailed(
            f"cannot write compiled kernels to {folder}: {error.strerror}; set ATTNFUZZ_CACHE to a folder with space"
        ) from error
    return library


def _key(command: str, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for part in (command, _version(command), tvm_ffi.__version__, *flags):
        digest.update(part.encode() + b"\0")
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


@functools.cache
def _version(command: str) -> str:
    answer = subprocess.run([*shlex.split(command), "--version"], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise NoCompiler(f"{command!r} --version fails: install a working g++ or set CXX")
    return answer.stdout


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`. The kernel drops it with the process, however that ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(command: str, flags: tuple[str, ...], library: Path, progress: Callable[[str], None]) -> None:
    files = [str(path) for path in sources() if path.suffix == ".cpp"]
    which = "native kernels with planted defects" if flags == _WITH_DEFECTS else "native kernels"
    progress(f"compiling {len(files)} files of {which} with {command} (about 10 s, once)")
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{_NAME}-", dir=library.parent) as build_folder:
        try:
            with _environment(CXX=command, PATH=f"{ninja.BIN_DIR}{os.pathsep}{os.environ.get('PATH', os.defpath)}"):
                built = tvm_ffi.cpp.build(
                    _NAME, cpp_files=files, extra_cflags=flags, extra_ldflags=["-pthread"], build_directory=build_folder
                )
        except RuntimeError as error:
            raise BuildFailed(f"{command} could not compile the native kernels:\n{_essence(str(error))}") from error
        Path(built).replace(library)
    progress(f"compiled the {which} in {time.monotonic() - start:.1f} s")


@contextmanager
def _environment(**changes: str) -> Iterator[None]:
    """Environment variables for the build, which takes them from this process."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _essence(output: str) -> str:
    """The first errors of a compiler's output, without the commands that gave them."""
    lines = output.splitlines()
    start = next((index for index, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[start : start + _OUTPUT_LINES])
