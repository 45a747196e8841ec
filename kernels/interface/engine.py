"""Engines: LLM servers whose own attention backends are run, from a release or a source tree.

A package offers one through the entry point group `attnfuzz.engines`. Nothing in `attnfuzz.harness` names an engine.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from packaging.version import Version

from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.reference.device import Device
from attnfuzz.reference.user_error import UserError


class EngineError(UserError):
    """A release or source tree that can't be used. The message states the reason and the remedy."""


class Engine(Protocol):
    """An engine. The name of each of its backends includes a release or source tree.

    `name` is the engine's name in package names and options, `title` its display name. `kinds` are the parts of a
    release that can be run, named like the equivalent backends of this project. `default_kinds` are those that run if
    none is named.

    In contexts in which the engine is known, a release is written as a version, or as "@" and the path of a source
    tree.
    """

    name: str
    title: str
    kinds: tuple[str, ...]
    default_kinds: tuple[str, ...]

    def owns(self, backend: str) -> bool:
        """Return whether a backend's name, valid or not, belongs to this engine."""

    def resolve(self, backend: str) -> Backend:
        """Return the backend of that name. Imports no release. Raises EngineError."""

    def planner(self, backend: str) -> tuple[Path, Path]:
        """Return the folder of a backend's release, and the folder in it with the code that plans. Imports nothing.

        Raises EngineError.
        """

    def team(self, backend: str) -> str:
        """Return the release in a backend's name. Its workers can run no other release."""

    def preload(self, team: str, device: Device) -> tuple[str, ...]:
        """Return the code that imports a release before workers are forked: "module:function", then its arguments."""

    def without_release(self, backend: str) -> str:
        """Return a backend's name without its release, equal for all releases."""

    def on_device(self, backend: str, device: Device) -> str:
        """Return the name of the same backend on a device."""

    def of_tree(self, tree: Path, backends: Sequence[str]) -> tuple[str, ...]:
        """Return the names of these backends in a source tree, or those of all its backends if none are given.

        A name without a release gets the tree; others stay. Raises EngineError if every name has a release.
        """

    def in_tree(self, backend: str, tree: Path) -> str:
        """Return the name, in a source tree, of a backend of any release. Raises EngineError."""

    def origin(self, backend: str) -> str | None:
        """Return the same backend of the known release from which a source tree comes, or None for a release.

        Raises EngineError for a path that is not a source tree.
        """
        ...

    def untried(self, backend: str) -> bool:
        """Return whether a backend's release is untried with this project and may therefore fail to start."""

    def released(self) -> Sequence[Version]:
        """Return all available versions, the oldest first. Raises EngineError."""

    def backend(self, release: str, kind: str) -> str:
        """Return the name of the backend that is this kind of a release."""

    def kind_of(self, backend: str) -> str | None:
        """Return the kind of a backend of this engine or of this project, or None if releases have no equivalent."""

    def overview(self) -> str:
        """Describe in a few lines the names of its backends and the releases on this machine."""
