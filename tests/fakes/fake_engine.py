"""Stands for an engine of another package, found by its entry point. 1.2 fixed a defect of 1.0 and 1.1; 1.3 has one.

A release goes wrong only in a worker that imported it; 1.9 can't be run.
"""

from collections.abc import Sequence
from pathlib import Path

from defective_backend import Backend
from packaging.version import Version

from attnfuzz.kernels.interface.engine import EngineError
from attnfuzz.reference.device import Device

KIND = "decoder"

_DEFECTS = {"1.0": "LONG_KV", "1.1": "LONG_KV", "1.2": "NONE", "1.3": "NAN_ROW", "1.9": "MISSING"}


class FakeEngine:
    """An engine of five releases, named fake==VERSION:decoder."""

    name = "fake"
    title = "Fake"
    kinds: tuple[str, ...] = (KIND,)
    default_kinds: tuple[str, ...] = (KIND,)

    def owns(self, backend: str) -> bool:
        return backend.startswith(("fake==", "fake@", "fake:"))

    def resolve(self, backend: str) -> Backend:
        release = backend.removeprefix("fake==").removesuffix(f":{KIND}")
        if release not in _DEFECTS:
            raise EngineError(f"{backend!r}: Fake has the releases {', '.join(_DEFECTS)}")
        return Backend(_DEFECTS[release])

    def planner(self, backend: str) -> tuple[Path, Path]:
        folder = Path(__file__).parent
        return folder, folder / "defective_backend.py"

    def team(self, backend: str) -> str:
        return backend.rpartition(":")[0]

    def preload(self, team: str, device: Device) -> tuple[str, ...]:
        return "fake_engine:load", team

    def without_release(self, backend: str) -> str:
        return f"fake:{KIND}"

    def on_device(self, backend: str, device: Device) -> str:
        return backend

    def of_tree(self, tree: Path, backends: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.in_tree(backend, tree) for backend in backends or [KIND])

    def in_tree(self, backend: str, tree: Path) -> str:
        return f"fake@{tree.resolve()}:{KIND}"

    def origin(self, backend: str) -> str | None:
        return f"fake==1.2:{KIND}" if backend.startswith("fake@") else None

    def untried(self, backend: str) -> bool:
        return False

    def released(self) -> Sequence[Version]:
        return [Version(text) for text in _DEFECTS]

    def backend(self, release: str, kind: str) -> str:
        return f"fake{'' if release.startswith('@') else '=='}{release}:{kind}"

    def kind_of(self, backend: str) -> str | None:
        return KIND if self.owns(backend) else None

    def overview(self) -> str:
        return "Releases of Fake: fake==VERSION:decoder."


ENGINE = FakeEngine()

LOADED: list[str] = []
"""The releases that this process imported."""


def load(team: str) -> None:
    """Import a release, in the process that workers are forked from."""
    LOADED.append(team)
