"""Toolchains: the modules that backends on GPUs need, compiled ahead of a run."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.interface.guests import shipped

BUILT: Final = "ATTNFUZZ_BUILT"
"""Environment variable: if it is 1, backends on GPUs have only the geometries whose modules are compiled."""


class Toolchain(Protocol):
    """A guest's compiled modules. Each function ignores backends that have none."""

    def compile_for(self, backends: Iterable[Backend], progress: Callable[[str], None]) -> None:
        """Compile the missing modules of `backends` at once, in a process that has no context. Raises BuildFailed."""

    def compile_few(self, seconds: float, progress: Callable[[str], None]) -> None:
        """Compile the cheapest modules that a backend needs on the visible GPUs, unless any module is compiled.

        They are given up if their compilers finish no file for `seconds`. Raises BuildFailed.
        """

    def without_modules(self, backends: Iterable[Backend]) -> list[str]:
        """Return the names of backends that need modules and have none, if the environment asks for compiled ones."""

    def environment(self) -> Mapping[str, str]:
        """Return the variables of a process that sees one of this process's GPUs."""

    def preload(self) -> None:
        """Import, before workers are forked, whatever starts no thread and creates no context."""

    def settle(self) -> None:
        """Prepare a worker that has a context for loading compiled modules."""

    def load_needs(self, backend: Backend) -> None:
        """Load the packages and compiled modules of a backend in a worker."""


def toolchains() -> tuple[Toolchain, ...]:
    """Return all toolchains."""
    return tuple(shipped("attnfuzz.toolchains").values())


def without_modules(backends: Iterable[Backend]) -> list[str]:
    """Return the names of backends that need modules and have none, if the environment asks for compiled ones."""
    resolved = tuple(backends)
    return [name for each in toolchains() for name in each.without_modules(resolved)]
