"""The build results of FlashInfer's modules on this machine, available without importing FlashInfer.

A JSON file in attnfuzz's cache for each release of FlashInfer and each list of architectures. It may be deleted at any
time: builds then find the contents of FlashInfer's own cache again.
"""

import functools
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec
from packaging.version import Version

from attnfuzz.kernels.building.library_cache import BuildFailed, cache_folder
from attnfuzz.kernels.cuda.visible import Arch, visible


@dataclass(frozen=True)
class Module:
    """One compilation unit. `spec` returns its JitSpec (flashinfer.jit), and imports flashinfer.

    `name` is a description such as "XQA bf16, pages of 64, head dim 128"; equal names are equal modules. `spec` is
    called in another process: use a functools.partial of a function at the top of a module.
    """

    name: str
    spec: Callable[[], Any] = field(compare=False)


@runtime_checkable
class Compiled(Protocol):
    """A backend for GPUs of `archs` that declares its modules, and the `libraries` of this project that it needs."""

    @property
    def archs(self) -> frozenset[Arch]:
        """The architectures that it runs on."""

    @property
    def libraries(self) -> tuple[tuple[Path, ...], ...]:
        """The source files of each library."""

    def modules(self) -> tuple[Module, ...]:
        """List the modules."""


ARCH_LIST = "FLASHINFER_CUDA_ARCH_LIST"
WORKSPACE_BASE = "FLASHINFER_WORKSPACE_BASE"
_UNKNOWN = "unknown"


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """The result of building one module: a `library`, or the `reason` for its absence.

    A reason is `lasting` if it is about the module (nvcc's static_assert, a check of FlashInfer's), and not if another
    try may succeed (a missing header, the time limit). `seconds` is the build time, and `core_seconds` the time of its
    compilers on all cores, both 0 if it was built before. `base` is the folder with FlashInfer's cache.
    """

    library: str = ""
    reason: str = ""
    lasting: bool = False
    seconds: float = 0.0
    core_seconds: float = 0.0
    base: str

    @property
    def ready(self) -> bool:
        """Whether its library is in FlashInfer's cache."""
        return bool(self.library) and self.base == workspace_base() and Path(self.library).exists()

    @property
    def settled(self) -> bool:
        """Whether trying again would give the same result without any work."""
        return self.ready or (self.lasting and self.base == workspace_base())


def architectures() -> str:
    """Read FlashInfer's target architectures as it does: $FLASHINFER_CUDA_ARCH_LIST, or the visible GPUs."""
    return os.environ.get(ARCH_LIST) or " ".join(sorted({gpu.capability for gpu in visible()}))


def capabilities(archs: str) -> list[str]:
    """Return the compute capabilities of architectures as FlashInfer names them, like 9.0a."""
    return [re.sub("[a-z]", "", arch) for arch in archs.split()]


def workspace_base() -> str:
    """Return the folder of FlashInfer's cache (flashinfer/jit/env.py, FLASHINFER_BASE_DIR)."""
    return os.environ.get(WORKSPACE_BASE) or str(Path.home())


def read(archs: str) -> Mapping[str, Built]:
    """Read the recorded modules for `archs`, by name; none without a record, or with a damaged one."""
    path = _path(archs)
    try:
        changed = path.stat().st_mtime_ns
    except OSError:
        return {}
    return _read(path, changed)


def ready() -> frozenset[str]:
    """Return the names of the modules that are ready for the architectures here. Takes a stat call for each."""
    return frozenset(name for name, built in read(architectures()).items() if built.ready)


def add(archs: str, found: Mapping[str, Built]) -> None:
    """Record more results. If two processes do so at once, one record may be lost, and is restored by a quick build.

    Raises BuildFailed if the cache can't be written.
    """
    path = _path(archs)
    content = msgspec.json.format(msgspec.json.encode({**read(archs), **found}), indent=1)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        Path(file.name).replace(path)
    except OSError as error:
        raise BuildFailed(
            f"cannot write to {path.parent}: {error.strerror}; set ATTNFUZZ_CACHE to a folder with space"
        ) from error


@functools.lru_cache(maxsize=4)
def _read(path: Path, _changed: int) -> Mapping[str, Built]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Built])
    except (OSError, msgspec.DecodeError):
        return {}


def _path(archs: str) -> Path:
    # FlashInfer itself adds the letters, as in 9.0a.
    return cache_folder() / f"flashinfer-{_release()}-sm{'-'.join(capabilities(archs)) or '-none'}.json"


def installed() -> Version:
    """Return the version of the installed FlashInfer without importing it; 0 if it is unknown."""
    release = _release()
    return Version("0" if release == _UNKNOWN else release)


@functools.cache
def _release() -> str:
    try:
        return version("flashinfer-python")
    except PackageNotFoundError:
        return _UNKNOWN
