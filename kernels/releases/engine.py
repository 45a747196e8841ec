"""An engine whose backends are those of its project's releases and source trees."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from packaging.version import Version

from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.releases.naming import ON_HOPPER, BadName, Named
from attnfuzz.kernels.releases.project import Project
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.releases.wheels import Wheels
from attnfuzz.reference.device import Device


class ReleasedEngine(ABC):
    """The releases of `project` on PyPI, and source trees of it. Implements `kernels.interface.engine.Engine`.

    `equivalents` are the kinds of a release by the names of this project's equivalent backends, where they differ.
    `preloads` is the code that imports a release before workers are forked, by device: "module:function", which
    takes the release's name.
    """

    project: ClassVar[Project]
    preloads: ClassVar[Mapping[Device, str]]
    equivalents: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self.name, self.title, self.kinds = self.project.name, self.project.title, self.project.kinds
        self.default_kinds = tuple(each for each in self.kinds if each not in self.project.asked_for)
        self._wheels = Wheels(self.project)
        self._some_tree = f"{self.name}:"

    @abstractmethod
    def backend_of(self, named: Named) -> Backend:
        """Return the backend of a name. Fetches and imports nothing. Raises ReleaseError for an invalid tree."""

    def owns(self, backend: str) -> bool:
        """Return whether a backend's name, valid or not, is one of this engine's."""
        rest = backend.removeprefix(ON_HOPPER) if self.project.on_gpu else backend
        return rest == self.name or rest.startswith((self.project.released, self.project.tree, self._some_tree))

    def resolve(self, backend: str) -> Backend:
        """Return the backend of that name. Imports no release. Raises BadName, or ReleaseError for a tree."""
        return self.backend_of(self._named(backend))

    def planner(self, backend: str) -> tuple[Path, Path]:
        """Return the folder of a release, which is fetched, or a tree, and that of its attention. Imports nothing."""
        root = release_of(self.project, self._named(backend).release).root
        return root, root / self.project.source

    def team(self, backend: str) -> str:
        """Return the release or tree: modules of two releases have the same names."""
        return self._named(backend).release

    def preload(self, team: str, device: Device) -> tuple[str, ...]:
        """Return the code that imports a release before workers are forked."""
        return self.preloads[device], team

    def without_release(self, backend: str) -> str:
        """Return a name such as sglang:KIND, on the device of `backend`."""
        return str(replace(self._named(backend), release=self.name))

    def on_device(self, backend: str, device: Device) -> str:
        """Return the name of the same backend on a device, which it has on both or on one alone."""
        named = self._named(backend)
        if named.kind not in self.project.on_hopper:
            return backend
        return str(replace(named, gpu=device is Device.CUDA))

    def of_tree(self, tree: Path, backends: Sequence[str]) -> tuple[str, ...]:
        """Return the names of these backends in a source tree, or of those that run by default if none are given.

        A name such as sglang:KIND gets the tree; other names stay. Raises BadName if there is none.
        """
        if backends and not any(map(self._in_some_tree, backends)):
            some = f"{self._some_tree}{self.kinds[0]}"
            raise BadName(f"a source tree is for {some}, which is not asked for: leave the tree out")
        named = backends or [f"{self._some_tree}{kind}" for kind in self.default_kinds]
        return tuple(self.in_tree(name, tree) if self._in_some_tree(name) else name for name in named)

    def in_tree(self, backend: str, tree: Path) -> str:
        """Return the name, in a source tree, of a backend of any release. Raises BadName.

        The path becomes absolute, so that the name means the same wherever its cases are replayed.
        """
        if not self.owns(backend):
            some = f"{self._some_tree}{self.kinds[0]}"
            raise BadName(f"{backend!r} is not a backend of {self.title}, but the source tree is: give {some}")
        where = ON_HOPPER if self.project.on_gpu and backend.startswith(ON_HOPPER) else ""
        kind = backend.rpartition(":")[2]
        return str(self._named(f"{where}{self.project.tree}{tree.resolve()}:{kind}"))

    def origin(self, backend: str) -> str | None:
        """Return the same backend of the newest pinned release that is no newer than a source tree; None for a release.

        Raises BadName, or ReleaseError for a tree that is none.
        """
        named = self._named(backend)
        if named.tree is None:
            return None
        reached = release_of(self.project, named.release).version
        pinned = map(Version, self._wheels_of(named).pinned())
        before = max((each for each in pinned if each <= reached), default=None)
        return None if before is None else str(replace(named, release=f"{self.project.released}{before}"))

    def untried(self, backend: str) -> bool:
        """Return whether a backend is of a version without a pinned wheel, or of a source tree."""
        named = self._named(backend)
        return str(named.version) not in self._wheels_of(named).pinned()

    def released(self) -> Sequence[Version]:
        """Return the versions on PyPI. Raises ReleaseError."""
        return self._wheels.released()

    def backend(self, release: str, kind: str) -> str:
        """Return the name of the backend that is this kind of a release."""
        mark = "" if release.startswith("@") else "=="
        return f"{self.name}{mark}{release}:{kind}"

    def kind_of(self, backend: str) -> str | None:
        """Return the kind of a backend: of any release, or ours on either device, with its revision or defect."""
        if backend.rpartition(":")[0].endswith(".py"):
            return None
        kind = re.split("[@+]", backend.rpartition(":")[2], maxsplit=1)[0]
        kind = self.equivalents.get(kind, kind)
        return kind if kind in self.kinds else None

    def overview(self) -> str:
        """Describe the names of backends of releases, and the releases on this machine."""
        cached = ", ".join(map(str, self._wheels.cached()))
        kinds = " and ".join(self.kinds)
        there = (*self.project.on_hopper, *self.project.gpu_kinds)
        on_gpu = (
            f"On a Hopper GPU run {' and '.join(there)}: "
            f"--backend {ON_HOPPER}{self.project.released}VERSION:{there[0]}.\n"
            if there
            else ""
        )
        return (
            f"Releases of {self.title} from {self.project.oldest} on have {kinds}: "
            f"--backend {self.project.released}VERSION:{self.kinds[0]}.\n{on_gpu}"
            f"Available without a network: {cached or 'none, the first use of one fetches it'}. "
            f"A source tree: --{self.name} PATH."
        )

    def _wheels_of(self, named: Named) -> Wheels:
        """Return the wheels that have the releases of a backend."""
        del named
        return self._wheels

    def _named(self, backend: str) -> Named:
        return Named.parse(self.project, backend)

    def _in_some_tree(self, backend: str) -> bool:
        return (backend.removeprefix(ON_HOPPER) if self.project.on_gpu else backend).startswith(self._some_tree)
