"""Which FlashInfer a release asks for: its wheel's metadata or its tree's pyproject.toml says so."""

import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

_FLASHINFER = "flashinfer-python"


def flashinfer_of_wheel(root: Path) -> Version | None:
    """What the metadata of the `sglang` in `root` pins; None if it pins no version."""
    found = next(iter(metadata.distributions(name="sglang", path=[str(root)])), None)
    return _pinned(found.requires or ()) if found else None


def flashinfer_of_project(pyproject: Path) -> Version | None:
    """What the dependencies in a pyproject.toml pin; None if they pin no version or can't be read."""
    try:
        requirements = tomllib.loads(pyproject.read_text())["project"]["dependencies"]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError):
        return None
    return _pinned(each for each in requirements if isinstance(each, str))


def _pinned(requirements: Iterable[str]) -> Version | None:
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.name.replace("_", "-").lower() == _FLASHINFER:
            exact = [each.version for each in requirement.specifier if each.operator == "=="]
            return Version(exact[0]) if exact and not exact[0].endswith("*") else None
    return None
