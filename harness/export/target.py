"""For whom a script is: whose functions it calls, in which memory, and how it says so."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attnfuzz.harness.export.body import Dialect
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.reference.user_error import UserError


class Target(StrEnum):
    """Whose functions a script calls: this project's CPU kernels, whose source it carries, or FlashInfer's."""

    NATIVE = "native"
    FLASHINFER = "flashinfer"


class CannotExport(UserError):
    """A case that no stand-alone script can be made of; the message says why."""


@dataclass(frozen=True)
class Parts:
    """What a target puts into a script.

    `packages` are import statements, `install` what pip is told if one fails. `about` are the lines of the head that
    say what it runs on and where it comes from. `allocate` and `main` name templates. `wrappers` is source of functions
    that the calls use; `left_out` are buffers that it does not make. `more` is what only the templates of this target
    know.
    """

    dialect: Dialect
    device: str
    packages: tuple[str, ...]
    install: str
    about: tuple[str, ...]
    allocate: str
    main: str
    wrappers: str
    left_out: frozenset[str] = frozenset()
    more: Mapping[str, Any] = field(default_factory=dict)


def raises(seen: Observation | None) -> bool:
    """Whether the failure is an exception. In a script that shows another, an exception only means that it can't."""
    return seen is not None and seen.kind in {Kind.RAISED, Kind.UNEXPECTED_REJECTION}


def versions_of(packages: tuple[str, ...]) -> list[str]:
    """Those that are installed, with their versions."""
    found = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return found
