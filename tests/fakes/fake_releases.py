"""Stands for releases of FlashInfer: a few lines each, in folders of pip and as wheels; and endings of runs."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_wheels import pack
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from attnfuzz.harness.releases.outcomes import Ending
from attnfuzz.kernels.building.pip import PipFailed, has_pip

needs_pip = pytest.mark.skipif(not has_pip(), reason="this Python has no pip")

ENDINGS = {
    "p": Ending.PASSES,
    "F": Ending.FAILS,
    "?": Ending.FAILS_OTHERWISE,
    "x": Ending.CANNOT_RUN,
    "-": Ending.CANNOT_BE_HAD,
}
"""Endings of runs by letters."""


def _files(version: str, source: str) -> dict[str, str]:
    """What a release consists of."""
    info = f"flashinfer_python-{version}.dist-info"
    return {
        "flashinfer/__init__.py": f"__version__ = {version!r}\n{source}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/top_level.txt": "flashinfer\n",
    }


def make_site(folder: Path, version: str, source: str = "") -> Path:
    """A folder with the release, whose `flashinfer` executes `source` when it is imported."""
    for name, text in _files(version, source).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def make_wheel(folder: Path, version: str, source: str = "") -> Path:
    """A wheel of the release in `folder`, which pip can find there."""
    wheel = folder / f"flashinfer_python-{version}-py3-none-any.whl"
    return pack(wheel, f"flashinfer_python-{version}.dist-info", _files(version, source))


def pip_has_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, made if there is none, from whose wheels pip takes all, whatever the machine's settings of it are."""
    folder.mkdir(exist_ok=True)
    for name in os.environ:
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    # pip then reads no other file of settings either.
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def replace_pip(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `pip_in_process` answer wherever attnfuzz runs pip."""
    stand_in = pip_in_process(folder)
    for module in ("harness.releases.sites", "kernels.building.pip", "kernels.releases.wheels"):
        monkeypatch.setattr(f"attnfuzz.{module}.pip", stand_in)


def pip_in_process(folder: Path) -> Callable[..., str]:
    """A stand-in for `pip`, which takes a second of CPU time: its answers to what is asked of it, from these wheels."""

    def pip(command: str, *arguments: str) -> str:
        found = {parse_wheel_filename(wheel.name)[:2]: wheel for wheel in folder.glob("*.whl")}
        if command == "index":
            name = arguments[1]
            released = sorted((v for own, v in found if own == name and not v.is_prerelease), reverse=True)
            if not released:
                raise PipFailed(f"No matching distribution found for {name}")
            return f"Available versions: {', '.join(map(str, released))}\n"
        name, _, version = arguments[-1].partition("==")
        wheel = found.get((canonicalize_name(name), Version(version)))
        if wheel is None:
            raise PipFailed(f"No matching distribution found for {arguments[-1]}")
        if command == "install":
            shutil.unpack_archive(wheel, arguments[arguments.index("--target") + 1], "zip")
        else:
            shutil.copy(wheel, arguments[arguments.index("--dest") + 1])
        return ""

    return pip
