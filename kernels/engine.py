"""Engines: LLM servers whose own attention backends are run, from a release or a source tree.

A package offers one through the entry point group `attnfuzz.engines`. Nothing in `attnfuzz.harness` names an engine.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from packaging.version import Version

from attnfuzz.kernels.backend import Backend
from attnfuzz.reference.device import Device
from attnfuzz.reference.user_error import UserError


class EngineError(UserError):
    """A release or source tree that can't be used; the message says why, and what to do."""


class Engine(Protocol):
    """An engine. Each name of one of its backends says which release, or source tree, it is from.

    `name` is the engine's name in package names and options, `title` its name for people. `kinds` are the parts of a
    release that can be run, each named as the backend of this project that does the same. A case may take `patience`
    times as long as usual before it counts as hanging.

    A release is written as a version, or as "@" and the path of a source tree, where only one engine is meant.
    """

    name: str
    title: str
    kinds: tuple[str, ...]
    patience: float

    def owns(self, backend: str) -> bool:
        """Whether a backend's name is one of this engine's, right or wrong."""
        ...

    def resolve(self, backend: str) -> Backend:
        """Return the backend of that name. Imports no release. Raises EngineError."""
        ...

    def team(self, backend: str) -> str:
        """Return the part of a backend's name that says which release: its workers can run no other."""
        ...

    def preload(self, team: str, device: Device) -> tuple[str, ...]:
        """Return what imports a release before workers are forked: "module:function", then its arguments."""
        ...

    def without_release(self, backend: str) -> str:
        """Return what a backend has in common with the same one of other releases, as a name."""
        ...

    def on_device(self, backend: str, device: Device) -> str:
        """Return the name of the same backend on a device."""
        ...

    def of_tree(self, tree: Path, backends: Sequence[str]) -> tuple[str, ...]:
        """Return these names, those without a release as the source tree has them; all of the tree's if there is none.

        Raises EngineError if none of the names is one without a release.
        """
        ...

    def in_tree(self, backend: str, tree: Path) -> str:
        """Return the name of a backend of any release, as a source tree has it. Raises EngineError."""
        ...

    def origin(self, backend: str) -> str | None:
        """Return the same backend of the known release that a source tree comes from; None for a release.

        Raises EngineError for a tree that is none.
        """
        ...

    def untried(self, backend: str) -> bool:
        """Whether a backend is of a release that has not been tried, so that its start may fail."""
        ...

    def released(self) -> Sequence[Version]:
        """Return all versions that can be had, the oldest first. Raises EngineError."""
        ...

    def backend(self, release: str, kind: str) -> str:
        """Return the name of the backend that is this kind of a release."""
        ...

    def kind_of(self, backend: str) -> str | None:
        """Return the kind of a backend, of this engine or of this project; None if no release has anything like it."""
        ...

    def overview(self) -> str:
        """Say, in a few lines, how its backends are named and which releases are here."""
        ...
