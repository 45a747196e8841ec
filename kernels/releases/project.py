"""An engine's project: the names of its releases, the files to unpack, and how a source tree is recognised."""

from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version


@dataclass(frozen=True)
class Project:
    """The project of an engine.

    Attributes:
        name: The name of the engine, of its package and of its distribution.
        title: Its display name.
        oldest: The first supported release.
        kinds: The supported parts of a release, each of which is a backend.
        gpu_kinds: Further ones, which run on a GPU alone.
        source: A folder of the package, relative to the tree, that distinguishes it from a folder of documentation.
        wheel: pip's options that select one wheel, with which hashes are pinned, on any machine: nothing compiled in
            it is needed.
        suffixes: Those of the files that are unpacked.
        left_out: Beginnings of the names of those that are not.
        hashes: A JSON file with the SHA-256 of the wheels of known versions.
        on_gpu: Whether a name may begin with "hopper:".

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
    on_gpu: bool = False
    gpu_kinds: tuple[str, ...] = ()

    @property
    def released(self) -> str:
        """The beginning of the names of releases, such as "sglang=="."""
        return f"{self.name}=="

    @property
    def tree(self) -> str:
        """The beginning of the names of source trees, such as "sglang@"."""
        return f"{self.name}@"
