"""The code that plans for a backend: a file of a user's, a folder of this project, or one of an engine's release."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attnfuzz.harness.backends.engines import engine_of
from attnfuzz.harness.backends.registry import builtin, is_file, resolve
from attnfuzz.reference.user_error import UserError


class NoCode(UserError):
    """No code is known that plans for a backend, or there is none at a path; the message has the remedy."""


class Code(NamedTuple):
    """The files and folders with the code, and the folder `root` in which messages name files."""

    root: Path
    places: tuple[str, ...]


def code_of(backend: str, named: Sequence[Path] = ()) -> Code:
    """Return the code that plans for a backend, or that at the `named` paths: of a release, those below its folder.

    Imports neither a release nor a user's code. Raises NoCode, UnknownBackend, BackendFileError, EngineError.
    """
    resolve(backend)
    root, own = _own(backend)
    paths = [root / each for each in named] if named else [own]
    for path in paths:
        if not path.exists():
            raise NoCode(f"{path} does not exist: name a file or a folder below {root}")
    # A folder's name is the beginning of another's.
    places = tuple(f"{path}/" if path.is_dir() else str(path) for path in paths)
    return Code(root, places)


def _own(backend: str) -> tuple[Path, Path]:
    if (engine := engine_of(backend)) is not None:
        return engine.planner(backend)
    if is_file(backend):
        file = Path(backend.rpartition(":")[0]).resolve()
        return file.parent, file
    found = builtin().get(backend)
    if found is None:
        raise NoCode(f"no code is known that plans for {backend}: name one of attnfuzz backends, or FILE.py:NAME")
    folder = Path(inspect.getfile(type(found))).parent
    return folder.parent, folder
