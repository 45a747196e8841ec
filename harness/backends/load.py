"""Loading a user's backend. This runs the user's code: only for processes that may die or hang."""

import importlib.util
import re
import sys
import traceback
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import cast

import msgspec

from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.interface.toolchain import limited
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.checked_fields import did_you_mean
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.user_error import UserError

ENTRY_POINTS = "attnfuzz.backends"
"""The entry point group in which an installed package offers a backend."""

_REQUIRED = ("name", "capability", "contract", "noise", "ops", "missing", "prepare", "open")
"""The parts of a backend of attention. Others may have exact results, and no noise."""

_MOST_CHARACTERS = 400
"""Number of characters of a user's exception that a message shows."""


class BackendFileError(UserError):
    """A backend could not be loaded from a user's file or from an entry point, or is not a valid backend."""


class BackendSource(msgspec.Struct, frozen=True):
    """Source of a user's backend: the value of an `entry_point`, or FILE.py:NAME in `name`."""

    name: str
    entry_point: str = ""


@cache
def load(source: BackendSource) -> Backend:
    """Import a backend, and instantiate a class. Raises BackendFileError for any exception, even SystemExit."""
    name = source.name
    if source.entry_point:
        return _checked(name, _of_entry_point(source))
    path, _, attribute = name.rpartition(":")
    return _checked(name, _attribute(_import(path), path, attribute))


def brief(error: BaseException) -> str:
    """Return the type and the first line of an exception, even if its __str__ raises."""
    try:
        lines = str(error).splitlines()
    except BaseException:  # noqa: BLE001 - it is the user's code
        return f"{type(error).__name__}: its __str__ raises"
    hint = did_you_mean(error, (Capability, Contract, NoiseModel, Bucket))
    if isinstance(error, ModuleNotFoundError) and type(error.name) is str and error.name.startswith("attnfuzz."):
        hint = " (import public names from attnfuzz itself: its modules may move)"
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:_MOST_CHARACTERS] + hint


def _of_entry_point(source: BackendSource) -> object:
    try:
        return EntryPoint(source.name, source.entry_point, ENTRY_POINTS).load()
    except BaseException as error:
        where = f"its entry point {source.entry_point}"
        raise BackendFileError(f"backend {source.name}: {where} fails: {brief(error)}") from error


def module_of_file(file: Path) -> str:
    """Return the name under which a file is imported. It includes the whole path, since file names may repeat."""
    return re.sub(r"\W", "_", f"attnfuzz_backend_{file}")


@cache
def _import(path: str) -> ModuleType:
    file = Path(path).resolve()
    spec = importlib.util.spec_from_file_location(module_of_file(file), file)
    if spec is None or spec.loader is None:
        raise BackendFileError(f"backend file {path} can't be imported as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # Modules next to the file can be imported, as if it were run.
    sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(spec.name, None)
        raise BackendFileError(f"backend file {path}{_line(error, file)} fails to import: {brief(error)}") from error
    return module


def _line(error: BaseException, file: Path) -> str:
    """Return ":LINE" of the file from which the error was raised, or "" if it has none."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f":{error.lineno}"
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == str(file)]
    return f":{lines[-1]}" if lines else ""


def _attribute(module: ModuleType, path: str, attribute: str) -> object:
    try:
        return getattr(module, attribute)
    except AttributeError:
        have = ", ".join(name for name, value in vars(module).items() if _is_own_backend(module, value))
        raise BackendFileError(f"backend file {path} has no {attribute}: its backends are {have or 'none'}") from None
    except BaseException as error:
        raise BackendFileError(f"backend file {path} can't give {attribute}: {brief(error)}") from error


def _is_own_backend(module: ModuleType, value: object) -> bool:
    """Return whether a file's value is a backend. A class counts only if defined there, not imported."""
    try:
        return not _lacking("", value) and (not isinstance(value, type) or value.__module__ == module.__name__)
    except BackendFileError:
        return False


def _lacking(name: str, value: object) -> list[str]:
    """Return the parts of a backend that `value` does not have. Raises BackendFileError."""
    lacking = []
    for part in _REQUIRED:
        try:
            getattr(value, part)
        except AttributeError:
            lacking.append(part)
        except BaseException as error:
            raise BackendFileError(f"{name}: its {part} raises {brief(error)}") from error
    return lacking


def _checked(name: str, found: object) -> Backend:
    """Return a backend, instantiating a class, after checking that it has all parts; limited as `limited` says."""
    try:
        backend = found() if isinstance(found, type) else found
    except BaseException as error:
        raise BackendFileError(f"{name} can't be made without arguments: {brief(error)}") from error
    lacking = _lacking(name, backend)
    if lacking == ["noise"] and not isinstance(cast("Backend", backend).capability, Capability):
        lacking = []
    if isinstance(backend, (list, tuple, dict)):
        raise BackendFileError(f"{name} is a {type(backend).__name__}: give each of its backends a name of its own")
    if lacking:
        advice = "make it an attnfuzz.Backend"
        if callable(backend):
            advice = "make one of a function with attnfuzz.FunctionBackend"
        raise BackendFileError(f"{name} is not a backend, it lacks {', '.join(lacking)}: {advice}")
    return limited(cast("Backend", backend))
