"""Backends by name: this project's, engines' releases, installed packages', and users' files.

A user's code, including a package's, is imported only by workers. In any other process, `resolve` returns a stand-in
that answers from a description made in a process that may die (`user_backends`).
"""

import difflib
import hashlib
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from attnfuzz.harness.backends.engines import LIBRARIES, engine_of
from attnfuzz.harness.backends.load import ENTRY_POINTS, BackendFileError, BackendSource
from attnfuzz.harness.backends.load import load as load_backend
from attnfuzz.harness.backends.rehearsal import rehearse
from attnfuzz.harness.family import families
from attnfuzz.kernels.cache_writes.then_attend import NoPair, WriteThenAttend
from attnfuzz.kernels.cuda.visible import visible
from attnfuzz.kernels.interface.backend import Backend, archs_of
from attnfuzz.kernels.interface.engine import Engine
from attnfuzz.kernels.interface.guests import shipped
from attnfuzz.reference.device import Device
from attnfuzz.reference.user_error import UserError

_COLLECTIONS = "attnfuzz.collections"
"""The group of functions that return the backends of this project, each without arguments."""

_PLANTED = "attnfuzz.planted"
"""The group of modules with planted mistakes: `planted()` has the backends by name, `pair(name)` those with two."""

_PLUS = "+"
"""Separates a backend from the mistakes planted in it."""

_LONGEST_IN_A_FILE_NAME = 100


class UnknownBackend(UserError):
    """No backend has that name."""


class WrongDevice(UserError):
    """A backend has no counterpart on the requested device. The message has the remedy."""


def builtin() -> dict[str, Backend]:
    """Return the backends of this project and their revisions."""
    ours = (backend for backends in shipped(_COLLECTIONS).values() for backend in backends())
    of_families = (backend for family in families() for backend in family.backends)
    return {backend.name: backend for backend in (*ours, *of_families)}


def planted() -> Mapping[str, Backend]:
    """Return the backends with one planted mistake, named like trtllm_mha+window_one_short."""
    return {name: backend for part in shipped(_PLANTED).values() for name, backend in part.planted().items()}


def _planted(name: str) -> Backend | None:
    """Return the backend with planted mistakes of that name, or None. Imports them if the name may be one."""
    if _PLUS not in name:
        return None
    parts = shipped(_PLANTED).values()
    return next(filter(None, (found for part in parts for found in (part.planted().get(name), part.pair(name)))), None)


class NoLibrary(UserError):
    """No library with a backend is installed."""


def with_libraries(named: Sequence[str]) -> tuple[str, ...]:
    """Return the names of backends, each once, with `LIBRARIES` replaced by those of libraries. Raises NoLibrary."""
    of_libraries = shipped(_COLLECTIONS)[LIBRARIES]() if LIBRARIES in named else ()
    here = [backend.name for backend in of_libraries if backend.missing() is None]
    if LIBRARIES in named and not here:
        raise NoLibrary("no library is installed whose kernels could be tested: attnfuzz backends says how to get them")
    return tuple(dict.fromkeys(name for each in named for name in (here if each == LIBRARIES else [each])))


def names() -> list[str]:
    """Return all backends without a file or a release."""
    return sorted({*builtin(), *entry_points(group=ENTRY_POINTS).names})


def fixed(name: str) -> str:
    """Return the backend without the revision or planted defect in `name`, or `name` itself if it has neither."""
    if (pair := _pair(name)) is not None:
        return _THEN.join(map(fixed, pair))
    return name if is_file(name) or engine_of(name) is not None else re.split("[@+]", name, maxsplit=1)[0]


def family(name: str) -> str:
    """Return the common name of a backend's versions: its revisions, or an engine's releases."""
    if (pair := _pair(name)) is not None:
        return _THEN.join(map(family, pair))
    engine = engine_of(name)
    return fixed(name) if engine is None else engine.without_release(name)


@cache
def origin(name: str) -> str | None:
    """Return the backend of the release from which a source tree comes, or None. Raises EngineError."""
    engine = engine_of(name)
    return None if engine is None else engine.origin(name)


def on_device(name: str, device: Device | None) -> str:
    """Return the counterpart of `name` on a device: trtllm_mha is hopper:trtllm_mha on a Hopper GPU.

    Backends of one device only, like users', keep their names there. None changes nothing.

    Raises:
        WrongDevice: there is none on that device; the message lists counterparts.
        UnknownBackend, BackendFileError: as `resolve`.
    """
    if device is None or resolve(name).capability.device is device:
        return name
    if (pair := _pair(name)) is not None:
        return _THEN.join(on_device(each, device) for each in pair)
    if (engine := engine_of(name)) is not None:
        return _release_on(name, device, engine)
    found = _on_gpu(name) if device is Device.CUDA else name.partition(":")[2]
    if is_file(name) or found not in builtin():
        raise WrongDevice(f"{name} has no counterpart on {device}: see attnfuzz backends --device {device}")
    return found


def _on_gpu(name: str) -> str:
    """Return the counterpart of `name` for the visible GPU, or "" if there is none for any GPU."""
    counterparts = [backend for backend in builtin().values() if archs_of(backend) and _without_gpu(backend) == name]
    gpus = visible()
    if not counterparts:
        return ""
    have = " and ".join(backend.name for backend in counterparts)
    if not gpus:
        raise WrongDevice(f"{name} is {have} on a GPU, and there is none here: name one of them, or no device")
    for backend in counterparts:
        if gpus[0].capability in archs_of(backend):
            return backend.name
    raise WrongDevice(
        f"{name} is {have} on a GPU, and this one is an {gpus[0].name} (SM {gpus[0].capability}): "
        "see attnfuzz backends --device cuda"
    )


def _without_gpu(backend: Backend) -> str:
    return backend.name.partition(":")[2]


def _release_on(name: str, device: Device, engine: Engine) -> str:
    """Return the backend of an engine's release on another device."""
    found = engine.on_device(name, device)
    reason = resolve(found).missing() if device is Device.CUDA else None
    if reason is not None:
        raise WrongDevice(f"{name} can't run on {device} here: {reason}")
    return found


def is_file(name: str) -> bool:
    """Return whether `name` points into a Python file, as file.py:NAME."""
    return name.rpartition(":")[0].endswith(".py") and _pair(name) is None


def files_of(name: str) -> tuple[Path, ...]:
    """Return the user's files that the backend, or the pair of them, of that name comes from."""
    parts = _pair(name) or (name,)
    return tuple(Path(part.rpartition(":")[0]).resolve() for part in parts if is_file(part))


_THEN = ","
"""Separates a writer of the KV cache from the attention that reads its tokens."""


def _pair(name: str) -> tuple[str, str] | None:
    """Return the writer and the attention in the name of a backend of both, such as native:append,trtllm_mha."""
    writer, then, reader = name.partition(_THEN)
    # A path may contain a comma.
    return (writer, reader) if then and not Path(name.rpartition(":")[0]).is_file() else None


def as_file_name(name: str) -> str:
    """Return a backend's name as part of a file name, with path characters and leading dots replaced by "_".

    A long name keeps its end and a hash: file names have at most 255 bytes, shared with other parts.
    """
    safe = re.sub(r"^\.+|[^A-Za-z0-9_.@+-]+", "_", name)
    if len(safe) <= _LONGEST_IN_A_FILE_NAME:
        return safe
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{digest}-{safe[-_LONGEST_IN_A_FILE_NAME:]}"


def resolve(name: str) -> Backend:
    """Return the backend called `name`. A user's one answers as in its rehearsal, and can't open sessions.

    Raises:
        UnknownBackend: there is none; the message has similar names. EngineError: no such release.
        BackendFileError: its file or entry point can't be imported, or has no such backend.
    """
    return _resolved(name, str(Path.cwd()) if ".py:" in name else "")


@cache
def _resolved(name: str, folder: str) -> Backend:
    """Resolve a name, in the folder of this process if it is that of a file."""
    del folder
    return _found(name, resolve, rehearse)


def why_unknown(name: str) -> str | None:
    """Return why no backend is called `name` here, in a line; None if one is. Runs no user's code."""
    try:
        if _source(name) is None:
            resolve(name)
    except UserError as error:
        return str(error)
    return None


def load(name: str) -> Backend:
    """Return the backend called `name`, for opening sessions. It imports users' code: only for workers.

    Raises like `resolve`.
    """
    return _found(name, load, load_backend)


def _found(name: str, part: Callable[[str], Backend], of_source: Callable[[BackendSource], Backend]) -> Backend:
    """Return the backend of a name: a user's, this project's own, or a combination of two."""
    if (pair := _pair(name)) is not None and name not in planted():
        try:
            writer, reader = map(part, pair)
            return WriteThenAttend(writer, reader)
        except NoPair as reason:
            raise UnknownBackend(f"{name} is no writer of a KV cache and its reader: {reason}") from None
    source = _source(name)
    return _own(name) if source is None else of_source(source)


def _source(name: str) -> BackendSource | None:
    """Return the source of a user's backend, or None for attnfuzz's own, and for unknown names."""
    if is_file(name):
        _check_file(name.rpartition(":")[0])
        return BackendSource(name)
    if engine_of(name) is not None or name in builtin() or (_PLUS in name and name in planted()):
        return None
    return next((BackendSource(name, point.value) for point in entry_points(group=ENTRY_POINTS, name=name)), None)


def _check_file(path: str) -> None:
    """Raise BackendFileError for a path that can't be imported. A FIFO would block."""
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        if Path(path).is_absolute():
            raise BackendFileError(f"backend file {path} does not exist: give FILE.py:NAME") from None
        raise BackendFileError(
            f"backend file {path} does not exist in {Path.cwd()}: run attnfuzz in its folder, or give --backend "
            f"FOLDER/{Path(path).name}:NAME"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BackendFileError(f"backend file {path} can't be read: {reason}. Give FILE.py:NAME") from None
    if not stat.S_ISREG(mode):
        raise BackendFileError(f"backend file {path} is not a regular file: give FILE.py:NAME")


def _own(name: str) -> Backend:
    """Return a backend of this project, or of an engine's release."""
    if (engine := engine_of(name)) is not None:
        return engine.resolve(name)
    found = builtin().get(name) or _planted(name)
    if found is None:
        raise UnknownBackend(_unknown(name))
    return found


def _unknown(name: str) -> str:
    if _PLUS in name and not is_file(name):
        close = difflib.get_close_matches(name, planted(), n=2)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        return f"no backend has the defect {name!r}: {hint}See attnfuzz defects list."
    if name.endswith(".py") and Path(name).is_file():
        return f"{name} is a file: name a backend in it, such as {name}:{_assigned(Path(name)) or 'NAME'}"
    close = similar(name)
    hint = f"did you mean {' or '.join(close)}?" if close else "name one of attnfuzz backends, or FILE.py:NAME"
    return f"unknown backend {name!r}: {hint}"


def _assigned(path: Path) -> str | None:
    """Return the last backend that a file assigns, by its text: a user's file is imported in workers alone."""
    names = re.findall(r"^(\w+)\s*(?::[^=\n]*)?=\s*\w*Backend\(", path.read_text(errors="replace"), re.MULTILINE)
    return names[-1] if names else None


def similar(name: str) -> list[str]:
    """Return up to two backends whose names resemble `name`, the closest first."""
    return difflib.get_close_matches(name, names(), n=2)
