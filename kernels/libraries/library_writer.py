"""A writer of the KV cache in a library that may be missing."""

from dataclasses import dataclass

from attnfuzz.kernels.cache_writes.writer_backend import CopyBackend, GatherBackend, RotationBackend, WriterBackend
from attnfuzz.kernels.libraries.installed import Installed


@dataclass(frozen=True, kw_only=True)
class LibraryWriter(Installed, WriterBackend):
    """A writer of a library: a WriterBackend called `label`, such as "vllm_cpu:reshape_and_cache"."""


@dataclass(frozen=True, kw_only=True)
class LibraryRotation(LibraryWriter, RotationBackend):
    """A rotation of a library."""


@dataclass(frozen=True, kw_only=True)
class LibraryGather(LibraryWriter, GatherBackend):
    """A gather of a library."""


@dataclass(frozen=True, kw_only=True)
class LibraryCopy(LibraryWriter, CopyBackend):
    """A library's copy within the cache."""
