"""Backends by name: those of this project, of installed packages, and of a user's file."""

import difflib
import importlib.util
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from attnfuzz.kernels.backend import Backend
from attnfuzz.kernels.torch_sdpa import SdpaBackend
from attnfuzz.kernels.trtllm.backends import TRTLLM_BACKENDS

ENTRY_POINTS = "attnfuzz.backends"
"""The entry point group in which an installed package offers a backend."""

_REQUIRED = ("name", "capability", "contract", "noise", "missing", "prepare", "open")


class UnknownBackend(ValueError):  # noqa: N818 - reads as what happened
    """No backend has that name."""


class BackendFileError(ValueError):
    """A backend could not be loaded from a user's file or from an entry point."""


def builtin() -> dict[str, Backend]:
    """The backends of this project and their revisions."""
    backends: tuple[Backend, ...] = (*TRTLLM_BACKENDS, SdpaBackend())
    return {backend.name: backend for backend in backends}


def names() -> list[str]:
    """Every backend that can be named without a file."""
    return sorted({*builtin(), *entry_points(group=ENTRY_POINTS).names})


def fixed(name: str) -> str:
    """The backend that `name` is a revision of; `name` itself if it is none."""
    return name if is_file(name) else name.partition("@")[0]


def is_file(name: str) -> bool:
    """Whether `name` points into a Python file, as file.py:NAME."""
    return name.rpartition(":")[0].endswith(".py")


@cache
def resolve(name: str) -> Backend:
    """The backend called `name`.

    Raises:
        UnknownBackend: there is none; the message lists what there is.
        BackendFileError: its file or entry point can't be imported, or has no such backend.
    """
    if is_file(name):
        path, _, attribute = name.rpartition(":")
        return _checked(name, _attribute(_import(path), path, attribute))
    found = builtin().get(name)
    if found is not None:
        return found
    for point in entry_points(group=ENTRY_POINTS, name=name):
        try:
            return _checked(name, point.load())
        except Exception as error:
            raise BackendFileError(f"backend {name}: its entry point {point.value} fails: {_brief(error)}") from error
    raise UnknownBackend(_unknown(name))


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, names(), n=1)
    hint = f"did you mean {close[0]}?" if close else "give one of these, or FILE.py:NAME."
    return f"unknown backend {name!r}: {hint} Known: {', '.join(names())}"


@cache
def _import(path: str) -> ModuleType:
    file = Path(path).resolve()
    if not file.is_file():
        raise BackendFileError(f"backend file {path} does not exist: give FILE.py:NAME")
    spec = importlib.util.spec_from_file_location(f"attnfuzz_backend_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise BackendFileError(f"backend file {path} can't be imported as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BackendFileError(f"backend file {path} fails to import: {_brief(error)}") from error
    return module


def _attribute(module: ModuleType, path: str, attribute: str) -> object:
    if not hasattr(module, attribute):
        have = ", ".join(name for name in vars(module) if not name.startswith("_"))
        raise BackendFileError(f"backend file {path} has no {attribute}: it defines {have or 'nothing'}")
    return getattr(module, attribute)


def _checked(name: str, found: object) -> Backend:
    """An instance, made by calling what is a class; each part that a backend needs must be there."""
    backend = found() if isinstance(found, type) else found
    lacking = [part for part in _REQUIRED if not hasattr(backend, part)]
    if lacking:
        raise BackendFileError(f"{name} is no backend: it has no {', '.join(lacking)} (see attnfuzz.kernels.backend)")
    return backend  # type: ignore[return-value]


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
