"""A content-addressed disk cache of compiled kernels, shared by the C++ and the CUDA builds.

The cache is $ATTNFUZZ_CACHE, or attnfuzz/ in $XDG_CACHE_HOME, or ~/.cache/attnfuzz. An entry's name is a hash of all
its inputs, so entries never go stale and may be deleted at any time.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import ninja
import tvm_ffi

from attnfuzz.reference.user_error import UserError

_OUTPUT_LINES = 20


class NoCompiler(UserError):
    """No compiler for the kernels is installed."""


class BuildFailed(UserError):
    """Kernels could not be compiled or stored."""


def cache_folder() -> Path:
    """Return the folder of compiled kernels."""
    own = os.environ.get("ATTNFUZZ_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnfuzz"


def key(files: Iterable[Path], *parts: str) -> str:
    """Hash files and other inputs of a library. tvm_ffi's version is always included."""
    digest = hashlib.sha256()
    for part in (*parts, tvm_ffi.__version__):
        digest.update(part.encode() + b"\0")
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def stored(name: str, compiled: Callable[[str], str]) -> Path:
    """Return the library `name` in the cache. If it is missing, `compiled` makes it in a folder and returns its path.

    Concurrent processes compile it once. Raises BuildFailed if the cache can't be written.
    """
    folder = cache_folder()
    library = folder / f"{name}.so"
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(library.with_suffix(".lock")):
            if not library.exists():
                with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder) as build_folder:
                    Path(compiled(build_folder)).replace(library)
    except OSError as error:
        raise BuildFailed(
            f"cannot write compiled kernels to {folder}: {error.strerror}; set ATTNFUZZ_CACHE to a folder with space"
        ) from error
    return library


def compiled(
    name: str, by: str, variables: Mapping[str, str], build: Callable[[], str], progress: Callable[[str], None]
) -> str:
    """Run `build`, which compiles `name` with the compiler `by`, with these variables and with ninja on the path.

    Reports the beginning and the end to `progress`. Raises BuildFailed.
    """
    progress(f"compiling {name} with {by} (about 10 s, once)")
    start = time.monotonic()
    try:
        with environment(PATH=f"{ninja.BIN_DIR}{os.pathsep}{os.environ.get('PATH', os.defpath)}", **variables):
            library = build()
    except RuntimeError as error:
        raise BuildFailed(f"{by} could not compile {name}:\n{_essence(str(error))}") from error
    progress(f"compiled {name} in {time.monotonic() - start:.1f} s")
    return library


@contextmanager
def environment(**changes: str) -> Iterator[None]:
    """Set environment variables of this process temporarily."""
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
    """Return the first errors in a compiler's output, without the commands."""
    lines = output.splitlines()
    start = next((index for index, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[start : start + _OUTPUT_LINES])


def folder_made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return `folder`. If it is missing, `make` creates it under another name.

    It is renamed when complete, so an interrupted creation starts again. Concurrent processes create it once. Raises
    OSError if it can't be written, and the errors of `make`.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            draft = folder.with_name(f".draft-{folder.name}")
            # Left by a killed process.
            shutil.rmtree(draft, ignore_errors=True)
            try:
                make(draft)
                draft.rename(folder)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`. The operating system releases it when the process exits."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
