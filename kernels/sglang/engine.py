"""SGLang as an engine, and the lookup of its backends by name."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from packaging.version import Version

from attnfuzz.kernels.backend import Backend
from attnfuzz.kernels.sglang import naming, wheel
from attnfuzz.kernels.sglang.backends import SglangBackend, capability_of
from attnfuzz.kernels.sglang.naming import BadName, Named
from attnfuzz.kernels.sglang.on_hopper import hopper_backend_of
from attnfuzz.kernels.sglang.release import release_of
from attnfuzz.reference.device import Device

_SOME_TREE = "sglang:"

_PRELOAD = {
    Device.CPU: "attnfuzz.kernels.sglang.loader:load_release",
    Device.CUDA: "attnfuzz.kernels.sglang.loader:load_release_for_hopper",
}


def backend_of(named: Named) -> Backend:
    """Return the backend of a name. Fetches and imports nothing. Raises ReleaseError for an invalid tree."""
    version = named.version or release_of(named.release).version
    if named.gpu:
        return hopper_backend_of(named, version)
    return SglangBackend(named, capability_of(named.kind, version))


class Sglang:
    """The releases on PyPI that have these attention backends, and source trees. Implements `kernels.engine.Engine`."""

    name = "sglang"
    title = "SGLang"
    kinds: tuple[str, ...] = naming.KINDS

    def owns(self, backend: str) -> bool:
        """Whether a backend's name, valid or not, is one of SGLang's."""
        rest = backend.removeprefix(naming.ON_HOPPER)
        return rest == "sglang" or rest.startswith((naming.RELEASED, naming.TREE, _SOME_TREE))

    def resolve(self, backend: str) -> Backend:
        """Return the backend of that name. Imports no release. Raises BadName, or ReleaseError for a tree."""
        return backend_of(Named.parse(backend))

    def team(self, backend: str) -> str:
        """Return sglang==VERSION or sglang@PATH: modules of two releases have the same names."""
        return Named.parse(backend).release

    def preload(self, team: str, device: Device) -> tuple[str, ...]:
        """Return the code that imports a release before workers are forked."""
        return _PRELOAD[device], team

    def without_release(self, backend: str) -> str:
        """Return sglang:KIND, on the device of `backend`."""
        return str(replace(Named.parse(backend), release=self.name))

    def on_device(self, backend: str, device: Device) -> str:
        """Return the name of the same backend on a device; each has one on both."""
        return str(replace(Named.parse(backend), gpu=device is Device.CUDA))

    def of_tree(self, tree: Path, backends: Sequence[str]) -> tuple[str, ...]:
        """Return the names of these backends in a source tree, or of all its backends if none are given.

        sglang:KIND gets the tree; other names stay. Raises BadName if none is sglang:KIND.
        """
        if backends and not any(map(_in_some_tree, backends)):
            some = f"{_SOME_TREE}{self.kinds[0]}"
            raise BadName(f"a source tree is for {some}, which is not asked for: leave the tree out")
        named = backends or [f"{_SOME_TREE}{kind}" for kind in self.kinds]
        return tuple(self.in_tree(name, tree) if _in_some_tree(name) else name for name in named)

    def in_tree(self, backend: str, tree: Path) -> str:
        """Return the name, in a source tree, of a backend of any release. Raises BadName.

        The path becomes absolute, so that the name means the same wherever its cases are replayed.
        """
        if not self.owns(backend):
            some = f"{_SOME_TREE}{self.kinds[0]}"
            raise BadName(f"{backend!r} is no backend of SGLang, unlike the source tree: give {some}")
        where = naming.ON_HOPPER if backend.startswith(naming.ON_HOPPER) else ""
        kind = backend.rpartition(":")[2]
        return str(Named.parse(f"{where}{naming.TREE}{tree.resolve()}:{kind}"))

    def origin(self, backend: str) -> str | None:
        """Return the same backend of the newest pinned release that is no newer than a source tree; None for a release.

        Raises BadName, or ReleaseError for a tree that is none.
        """
        named = Named.parse(backend)
        if named.tree is None:
            return None
        reached = release_of(named.release).version
        before = max((each for each in map(Version, wheel.pinned()) if each <= reached), default=None)
        return None if before is None else str(replace(named, release=f"{naming.RELEASED}{before}"))

    def untried(self, backend: str) -> bool:
        """Whether a backend is of a version without a pinned wheel, or of a source tree."""
        return str(Named.parse(backend).version) not in wheel.pinned()

    def released(self) -> Sequence[Version]:
        """Return the versions on PyPI. Raises ReleaseError."""
        return wheel.released()

    def backend(self, release: str, kind: str) -> str:
        """Return the name of the backend that is this kind of a release."""
        mark = "" if release.startswith("@") else "=="
        return f"{self.name}{mark}{release}:{kind}"

    def kind_of(self, backend: str) -> str | None:
        """Return the kind of a backend: of any release, or ours on either device, with its revision or defect."""
        if backend.rpartition(":")[0].endswith(".py"):
            return None
        kind = re.split("[@+]", backend.rpartition(":")[2], maxsplit=1)[0]
        return kind if kind in self.kinds else None

    def overview(self) -> str:
        """Describe the names of backends of releases, and the releases on this machine."""
        cached = ", ".join(map(str, wheel.cached()))
        kinds = " and ".join(self.kinds)
        return (
            f"Releases of SGLang from {naming.OLDEST} on have {kinds}: --backend sglang==VERSION:{self.kinds[0]}.\n"
            f"Available without a network: {cached or 'none, the first use of one fetches it'}. "
            "A source tree: --sglang PATH."
        )


def _in_some_tree(backend: str) -> bool:
    return backend.removeprefix(naming.ON_HOPPER).startswith(_SOME_TREE)


ENGINE = Sglang()
