"""An engine's project: the names of its releases, the files to unpack, and how a source tree is recognised."""

from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version


@dataclass(frozen=True)
class Project:
    """The project of an engine.

    Attributes:
        name: The name of the engine and of its package.
        title: Its display name.
        oldest: The first supported release.
        kinds: The supported parts of a release, each of which is a backend.
        asked_for: Those that run only where they are named.
        on_hopper: Those that run on a Hopper GPU too: their names may begin with "hopper:".
        gpu_kinds: Further ones, which run on a GPU alone.
        source: A folder of the package, relative to the tree, that distinguishes it from a folder of documentation.
        wheel: pip's options that select one wheel, with which hashes are pinned, on any machine: nothing compiled in
            it is needed.
        suffixes: The ends of the names of files that are unpacked.
        left_out: Beginnings of the names of those that are not.
        hashes: A JSON file with the SHA-256 of the wheels of known versions.
        distribution: The name of its wheels on PyPI; by default that of the engine.

    """

    name: str
    title: str
    oldest: Version
    kinds: tuple[str, ...]
    source: Path
    wheel: tuple[str, ...]
    suffixes: frozenset[str]
    left_out: tuple[str, ...]
    hashes: Path
    on_hopper: tuple[str, ...] = ()
    gpu_kinds: tuple[str, ...] = ()
    asked_for: tuple[str, ...] = ()
    distribution: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether any of it runs on a GPU."""
        return bool(self.on_hopper or self.gpu_kinds)

    @property
    def on_pypi(self) -> str:
        """The name of its wheels on PyPI."""
        return self.distribution or self.name

    @property
    def file_name(self) -> str:
        """The beginning of the names of its wheels, and of the folders with their metadata."""
        return self.on_pypi.replace("-", "_")

    @property
    def released(self) -> str:
        """The beginning of the names of releases, such as "sglang=="."""
        return f"{self.name}=="

    @property
    def tree(self) -> str:
        """The beginning of the names of source trees, such as "sglang@"."""
        return f"{self.name}@"
