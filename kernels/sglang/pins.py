"""Attributes that releases read although mocks lack them, reviewed for each version."""

import json
from importlib.resources import files
from typing import Final

from packaging.version import Version

REMEDY: Final = "add it in kernels/sglang/runner.py, or review the branch that it takes and run make pin-sglang"
"""The remedy for an attribute that was not reviewed."""


def pinned(version: Version) -> dict[str, list[str]]:
    """Return the attributes that a release reads although its mocks lack them, with the reviewed lines.

    A version without pins has those of the previous one.
    """
    folder = files("attnfuzz.kernels.sglang") / "pinned"
    names = [entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")]
    earlier = [name for name in names if Version(name) <= version]
    if not earlier:
        return {}
    pins: dict[str, list[str]] = json.loads((folder / f"{max(earlier, key=Version)}.json").read_text(encoding="utf-8"))
    return pins
