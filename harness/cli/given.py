"""Resolving names and paths on the command line into backends, cases and findings."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from attnfuzz.harness.backends.engines import DEFAULT_BACKENDS, DEFAULT_BACKENDS_ON_GPU, engines
from attnfuzz.harness.backends.load import BackendFileError
from attnfuzz.harness.backends.registry import fixed, names, on_device, resolve, with_libraries
from attnfuzz.harness.cli.terminal import BadInput
from attnfuzz.harness.findings.finding import case_path
from attnfuzz.harness.sandbox.check import why_not
from attnfuzz.kernels.interface.engine import Engine
from attnfuzz.kernels.interface.toolchain import lacks_modules
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.device import Device

_MOST_LISTED = 10
"""Maximum number of names that a message lists."""


class EngineTree(NamedTuple):
    """A source tree of an engine."""

    engine: Engine
    path: Path

    def names(self, backends: Sequence[str]) -> tuple[str, ...]:
        """Return these backends, with those that name no release taken from the tree. Raises EngineError."""
        return self.engine.of_tree(self.path, backends)


Trees = Mapping[str, Path | None]
"""Paths of source trees by engine, from the options: at most one is not None."""


def tree_of(trees: Trees) -> EngineTree | None:
    """Return the source tree that was given, if one was. Raises BadInput for several."""
    found = [EngineTree(engine, path) for engine in engines() if (path := trees.get(engine.name)) is not None]
    if len(found) > 1:
        both = " and ".join(f"--{each.engine.name}" for each in found)
        raise BadInput(f"{both} are source trees of different engines: give one")
    return found[0] if found else None


def chosen_backends(names: Sequence[str], device: Device | None, trees: Trees) -> tuple[str, ...]:
    """Return the names of the backends to test: those of a source tree, or else these or the default ones on a device.

    "libraries" stands for all installed ones. Raises WrongDevice, UnknownBackend, BackendFileError, EngineError,
    NoLibrary.
    """
    named = names or (DEFAULT_BACKENDS_ON_GPU if device is Device.CUDA else DEFAULT_BACKENDS)
    tree = tree_of(trees)
    if tree is not None:
        named = tree.names(names)
    return tuple(dict.fromkeys(on_device(name, device) for name in with_libraries(named)))


def all_compiled() -> tuple[str, ...]:
    """Return the backends on GPUs that can run here and have compiled modules, or need none.

    Raises BadInput if there are none.
    """
    found = [name for name in names() if name == fixed(name) and _is_compiled(name)]
    if not found:
        raise BadInput("no backend has a module that is compiled for a GPU here; attnfuzz build --quick compiles some")
    return tuple(found)


def _is_compiled(name: str) -> bool:
    try:
        backend = resolve(name)
    except BackendFileError:
        return False
    on_gpu = backend.capability.device is Device.CUDA
    return on_gpu and backend.missing() is None and not lacks_modules(backend)


def compiled_backends(names: Sequence[str], tell: Callable[[str], None]) -> tuple[str, ...]:
    """Return the backends; with `--built`, without those on a GPU that have no compiled module.

    Reports the names of omitted backends. Raises BadInput if no backend is left, and errors of resolving names.
    """
    lacking = [name for name in names if lacks_modules(resolve(name))]
    if not lacking:
        return tuple(names)
    left_out = f"no module is compiled for {', '.join(lacking)}; attnfuzz build --backend NAME compiles them"
    left = tuple(name for name in names if name not in lacking)
    if not left:
        raise BadInput(left_out)
    tell(f"Skipped: {left_out}.")
    return left


def case_at(path: Path, backend: str | None = None, trees: Trees | None = None) -> AnyCase:
    """Return the case in a file or in a finding's folder, for another `backend` if one is given.

    With a source tree, a backend of any release of its engine is that of the tree instead.

    Raises CaseFileError, or UnknownBackend, BackendFileError, BadInput if the backend can't run it.
    """
    case = case_file.load(case_path(path))
    if backend is not None:
        case = case.having(backend=backend)
    if (tree := tree_of(trees or {})) is not None:
        case = case.having(backend=tree.engine.in_tree(case.backend, tree.path))
    lacking = why_not(resolve(case.backend), case)
    if lacking is not None:
        raise BadInput(f"{case.backend} does not support {lacking}: it can't run this case. Try another --backend.")
    return case


class HasName(Protocol):
    """An object with a name."""

    @property
    def name(self) -> str:
        """The name."""
        ...


Named = TypeVar("Named", bound=HasName)


def named(names: Sequence[str], known: Sequence[Named], noun: str) -> list[Named]:
    """Return the objects with these names, each once; all known ones if there are no names.

    Raises BadInput, which suggests similar names. `attnfuzz {noun}s list` lists all.
    """
    by_name = {each.name: each for each in known}
    for name in names:
        if name not in by_name:
            close = difflib.get_close_matches(name, by_name, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"attnfuzz {noun}s list names them."
            raise BadInput(f"no {noun} is called {name!r}: {hint}")
    return [by_name[name] for name in dict.fromkeys(names)] or list(known)


def find_by_name(findings: Sequence[Named], name: str, where: str) -> Named:
    """Return the finding with this name, or the only one whose name contains it. Raises BadInput, naming `where`."""
    found = [each for each in findings if each.name == name] or [each for each in findings if name in each.name]
    if len(found) == 1:
        return found[0]
    known = [each.name for each in found or findings]
    shown = ", ".join(known[:_MOST_LISTED]) or "none"
    more = f", and {len(known) - _MOST_LISTED} more" if len(known) > _MOST_LISTED else ""
    which = "several findings with" if found else "no finding with"
    raise BadInput(f"{where} has {which} {name!r} in its name: it has {shown}{more}")
