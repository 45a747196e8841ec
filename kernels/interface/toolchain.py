"""Toolchains: the modules that backends on GPUs need, compiled ahead of a run."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.interface.guests import shipped

BUILT: Final = "ATTNFUZZ_BUILT"
"""Environment variable: if it is 1, backends on GPUs have only the geometries whose modules are compiled."""


class Toolchain(Protocol):
    """A guest's compiled modules. Each function ignores backends that have none."""

    def compiling(self, backends: Iterable[Backend]) -> Iterator[str]:
        """Compile the missing modules of `backends` at once, in a process that has no context.

        Yields lines of progress. Raises BuildFailed.
        """

    def compile_few(self, seconds: float, progress: Callable[[str], None]) -> None:
        """Compile the cheapest modules that a backend needs on the visible GPUs, unless any module is compiled.

        They are given up if their compilers finish no file for `seconds`. Raises BuildFailed.
        """

    def lacks_modules(self, backend: Backend) -> bool:
        """Return whether a backend needs modules and has none."""

    def limited(self, backend: Backend) -> Backend:
        """Return a backend with the geometries whose modules are compiled; unchanged if it has none."""

    def environment(self) -> Mapping[str, str]:
        """Return the variables of a process that sees one of this process's GPUs."""

    def preload(self) -> None:
        """Import, before workers are forked, whatever starts no thread and creates no context."""

    def settle(self) -> None:
        """Prepare a worker that has a context for loading compiled modules."""

    def prelude(self, script: str) -> str:
        """Return Python that a fresh process runs before `script`, so that it loads modules that are compiled here."""

    def load_needs(self, backend: Backend) -> None:
        """Load the packages and compiled modules of a backend in a worker."""


def toolchains() -> tuple[Toolchain, ...]:
    """Return all toolchains."""
    return tuple(shipped("attnfuzz.toolchains").values())


def only_compiled() -> bool:
    """Return whether the environment asks for compiled geometries."""
    return os.environ.get(BUILT) == "1"


def lacks_modules(backend: Backend) -> bool:
    """Return whether a backend needs modules and has none, if the environment asks for compiled ones.

    The stand-in of a user's backend knows it.
    """
    if not only_compiled():
        return False
    return bool(getattr(backend, "lacks_modules", False)) or any(each.lacks_modules(backend) for each in toolchains())


def limited(backend: Backend) -> Backend:
    """Return a backend with the geometries whose modules are compiled, if the environment asks for compiled ones."""
    if only_compiled():
        for each in toolchains():
            backend = each.limited(backend)
    return backend
