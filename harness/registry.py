"""Backends by name: those of this project, of SGLang's releases, of installed packages, and of a user's file."""

import difflib
import hashlib
import importlib.util
import re
import sys
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import cast

from attnfuzz.kernels.backend import Backend
from attnfuzz.kernels.defects.catalogue import planted
from attnfuzz.kernels.gpu.catalogue import GPU_BACKENDS
from attnfuzz.kernels.gpu.visible import visible
from attnfuzz.kernels.sglang.catalogue import backend_of
from attnfuzz.kernels.sglang.naming import BadName, Named, is_sglang
from attnfuzz.kernels.torch_sdpa import SDPA_BACKENDS
from attnfuzz.kernels.trtllm.backends import TRTLLM_BACKENDS
from attnfuzz.reference.device import Device
from attnfuzz.reference.user_error import UserError

ENTRY_POINTS = "attnfuzz.backends"
"""The entry point group in which an installed package offers a backend."""

_LONGEST_IN_A_FILE_NAME = 100

_REQUIRED = ("name", "capability", "contract", "noise", "ops", "missing", "prepare", "open")


class UnknownBackend(UserError):
    """No backend has that name."""


class WrongDevice(UserError):
    """A backend has no counterpart on the device that was asked for; the message says what to do."""


class BackendFileError(UserError):
    """A backend could not be loaded from a user's file or from an entry point."""


def builtin() -> dict[str, Backend]:
    """The backends of this project and their revisions."""
    backends: tuple[Backend, ...] = (*TRTLLM_BACKENDS, *SDPA_BACKENDS, *GPU_BACKENDS)
    return {backend.name: backend for backend in backends}


def names() -> list[str]:
    """Every backend that can be named without a file or a release."""
    return sorted({*builtin(), *entry_points(group=ENTRY_POINTS).names})


def fixed(name: str) -> str:
    """The backend that `name` is a revision of, or has a defect planted in; `name` itself if it is neither."""
    return name if is_file(name) or is_sglang(name) else re.split("[@+]", name, maxsplit=1)[0]


def family(name: str) -> str:
    """What the versions of one backend have in common: its revisions, or releases of SGLang."""
    return str(replace(Named.parse(name), release="sglang")) if is_sglang(name) else fixed(name)


def on_device(name: str, device: Device | None) -> str:
    """The backend that is called `name` on a device: trtllm_mha is hopper:trtllm_mha on a GPU of that architecture.

    Backends of one device only, a user's among them, keep their names there. None leaves every name as it is.

    Raises:
        WrongDevice: there is none on that device; says what there is.
        UnknownBackend, BackendFileError: as `resolve`.

    """
    if device is None or resolve(name).capability.device is device:
        return name
    if is_sglang(name):
        return _release_on(name, device)
    found = _on_gpu(name) if device is Device.CUDA else name.partition(":")[2]
    if is_file(name) or found not in builtin():
        raise WrongDevice(f"{name} has nothing to run on {device}: attnfuzz backends --device {device} lists what has")
    return found


def _on_gpu(name: str) -> str:
    """The counterpart of `name` for the GPU that is visible, "" if there is none for any."""
    counterparts = [backend for backend in GPU_BACKENDS if backend.name.partition(":")[2] == name]
    gpus = visible()
    if not counterparts:
        return ""
    have = " and ".join(backend.name for backend in counterparts)
    if not gpus:
        raise WrongDevice(f"{name} is {have} on a GPU, and there is none here: name one of them, or ask for no device")
    for backend in counterparts:
        if gpus[0].capability in backend.archs:
            return backend.name
    raise WrongDevice(
        f"{name} is {have} on a GPU, and this one is an {gpus[0].name} (SM {gpus[0].capability}): "
        "attnfuzz backends --device cuda lists what runs on it"
    )


def _release_on(name: str, device: Device) -> str:
    """The backend of a release of SGLang, which has one on every device that is known."""
    found = str(replace(Named.parse(name), gpu=device is Device.CUDA))
    reason = resolve(found).missing() if device is Device.CUDA else None
    if reason is not None:
        raise WrongDevice(f"{name} can't run on {device} here: {reason}")
    return found


def is_file(name: str) -> bool:
    """Whether `name` points into a Python file, as file.py:NAME."""
    return name.rpartition(":")[0].endswith(".py")


def as_file_name(name: str) -> str:
    """A backend's name as part of a file's: what could mean something in a path becomes "_", or would hide the file.

    Of a name that holds a long path, the end and a hash stay: file names have at most 255 bytes, and there is more in
    one than the backend.
    """
    safe = re.sub(r"^\.+|[^A-Za-z0-9_.@+-]+", "_", name)
    if len(safe) <= _LONGEST_IN_A_FILE_NAME:
        return safe
    return f"{hashlib.sha256(name.encode()).hexdigest()[:8]}-{safe[-_LONGEST_IN_A_FILE_NAME:]}"


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
    if is_sglang(name):
        return _of_sglang(name)
    found = builtin().get(name) or planted().get(name)
    if found is not None:
        return found
    for point in entry_points(group=ENTRY_POINTS, name=name):
        try:
            found = point.load()
        except (Exception, SystemExit) as error:
            raise BackendFileError(f"backend {name}: its entry point {point.value} fails: {_brief(error)}") from error
        return _checked(name, found)
    raise UnknownBackend(_unknown(name))


def _of_sglang(name: str) -> Backend:
    try:
        return backend_of(Named.parse(name))
    except BadName as error:
        raise UnknownBackend(str(error)) from None


def _unknown(name: str) -> str:
    if "+" in name and not is_file(name):
        close = difflib.get_close_matches(name, planted(), n=2)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        return f"no backend has the defect {name!r}: {hint}See attnfuzz defects list."
    close = difflib.get_close_matches(name, names(), n=2)
    hint = f"did you mean {' or '.join(close)}?" if close else "give one of these, or FILE.py:NAME."
    return f"unknown backend {name!r}: {hint} Known: {', '.join(names())}"


@cache
def _import(path: str) -> ModuleType:
    file = Path(path).resolve()
    if not file.is_file():
        raise BackendFileError(f"backend file {path} does not exist: give FILE.py:NAME")
    # Named for the whole path: files of several folders may have the same name.
    spec = importlib.util.spec_from_file_location(re.sub(r"\W", "_", f"attnfuzz_backend_{file}"), file)
    if spec is None or spec.loader is None:
        raise BackendFileError(f"backend file {path} can't be imported as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # What lies beside the file can be imported, as if it were run.
    sys.path.append(str(file.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise BackendFileError(f"backend file {path} fails to import: {_brief(error)}") from error
    return module


def _attribute(module: ModuleType, path: str, attribute: str) -> object:
    if not hasattr(module, attribute):
        have = ", ".join(name for name, value in vars(module).items() if _is_own_backend(module, value))
        raise BackendFileError(f"backend file {path} has no {attribute}: its backends are {have or 'none'}")
    return getattr(module, attribute)


def _is_own_backend(module: ModuleType, value: object) -> bool:
    """Whether a file's name stands for a backend: a class only if it is defined there, not imported."""
    return not _lacking(value) and (not isinstance(value, type) or value.__module__ == module.__name__)


def _lacking(value: object) -> list[str]:
    """The parts of a backend that `value` does not have."""
    return [part for part in _REQUIRED if not hasattr(value, part)]


def _checked(name: str, found: object) -> Backend:
    """An instance, made by calling what is a class; each part that a backend needs must be there."""
    try:
        backend = found() if isinstance(found, type) else found
    except Exception as error:
        raise BackendFileError(f"{name} can't be made without arguments: {_brief(error)}") from error
    lacking = _lacking(backend)
    if lacking:
        advice = "make it a Backend of attnfuzz.kernels.backend"
        if callable(backend):
            advice = "make one of a function with attnfuzz.kernels.function_backend.FunctionBackend"
        raise BackendFileError(f"{name} is no backend, it has no {', '.join(lacking)}: {advice}")
    return cast("Backend", backend)


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]
