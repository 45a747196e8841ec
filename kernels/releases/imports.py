"""Importing a release's modules: a bare package without its __init__, and errors that say which line failed."""

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from attnfuzz.kernels.releases.errors import Moved, ReleaseError
from attnfuzz.kernels.releases.release import Release
from attnfuzz.kernels.releases.stubs import Note, Stubs
from attnfuzz.kernels.releases.wheels import Wheels


@dataclass(frozen=True)
class ImportedRelease:
    """The modules of a release, imported. `stubs` stand for those that it does without."""

    release: Release
    stubs: Stubs

    def module(self, name: str) -> Any:
        """Import a module of the release. Raises ReleaseError if it has moved or can't be imported."""
        return imported(self.release, name)

    def listen(self, note: Note | None) -> None:
        """Call `note` with each name that is read from a stub from now on."""
        self.stubs.note = note

    def check_same(self, release: Release) -> None:
        """Raise ReleaseError for another release than this process has."""
        if self.release != release:
            raise ReleaseError(f"this process has {self.release.name}: {release.name} needs another process")


@contextmanager
def importing(release: Release, stubbed: Sequence[str], *, compiled: bool) -> Iterator[Stubs]:
    """Import a release's modules inside, with stubs, and Triton's kernels compiled or interpreted.

    Nothing stays of an import that fails. Raises ReleaseError if this process has imported the package already.
    """
    name = release.project.name
    if name in sys.modules:
        raise ReleaseError(f"this process has imported {name} already: {release.name} needs a process of its own")
    # Triton reads it where a kernel is decorated (triton/runtime/jit.py), so it is set before a release is imported.
    if compiled:
        os.environ.pop("TRITON_INTERPRET", None)
    else:
        os.environ["TRITON_INTERPRET"] = "1"
    stubs = Stubs(stubbed)
    stubs.install()
    try:
        _install_bare_package(release)
        yield stubs
    except BaseException:
        stubs.remove()
        _forget(release)
        raise


def _install_bare_package(release: Release) -> None:
    """Install the release's package without its __init__, which imports the frontend and the server."""
    name = release.project.name
    package = ModuleType(name)
    folder = str(release.root / name)
    package.__path__ = [folder]
    package.__spec__ = ModuleSpec(name, None, is_package=True)
    package.__spec__.submodule_search_locations = [folder]
    sys.modules[name] = package


def imported(release: Release, name: str) -> Any:
    """Import a module of a release. Raises ReleaseError with the place, or Moved if there is no such module."""
    try:
        return importlib.import_module(name)
    except ReleaseError:
        raise
    except ModuleNotFoundError as error:
        raise _absent(release, name, error) from error
    # Importing a module runs arbitrary code, and SystemExit would end the worker silently.
    except (Exception, SystemExit) as error:
        reason = str(error).splitlines() or [""]
        raise ReleaseError(
            f"{release.name}: {name} fails at import, {_place(release, error)}: {type(error).__name__}: {reason[0]}"
        ) from error


def not_known(release: Release) -> str:
    """Say that a place has moved, and where places are kept."""
    return f"attnfuzz does not know where it is in this version, see kernels/{release.project.name}/loader.py"


def _absent(release: Release, name: str, error: ModuleNotFoundError) -> ReleaseError:
    missing, project = error.name or "", release.project
    if missing == name or name.startswith(f"{missing}."):
        return Moved(f"{release.name} has no module {name}: {not_known(release)}")
    if missing.partition(".")[0] == project.name:
        return ReleaseError(f"{release.name}: {name} needs {missing}, which the tree lacks: is it complete?")
    return ReleaseError(
        f"{release.name}: {name} needs {missing} ({_place(release, error)}): pip install 'attnfuzz[{project.name}]', "
        f"or pip install {missing.partition('.')[0]} if it is new to {project.title}"
    )


def _place(release: Release, error: BaseException) -> str:
    """Return the last line of the release that an error came through, or that Python could not read."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{os.path.relpath(error.filename, release.root)}:{error.lineno}"
    trace, place = error.__traceback__, "outside of its files"
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(str(release.root)):
            place = f"{os.path.relpath(file, release.root)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def check_classes(release: Release, classes: Mapping[str, Sequence[str]]) -> None:
    """Raise Moved if a required class is not in its module."""
    for name, members in classes.items():
        for each in members:
            if not hasattr(imported(release, name), each):
                raise Moved(f"{release.name} has no {each} in {name}: {not_known(release)}")


def check_unedited(release: Release) -> None:
    """Raise ReleaseError if an imported file of a fetched release differs from its wheel's."""
    project = release.project
    if not release.name.startswith(project.released):
        return
    ours = [module for name, module in sys.modules.items() if name.startswith(f"{project.name}.")]
    files = (getattr(module, "__file__", None) for module in ours)
    edited = Wheels(project).edited(release.root, [Path(file) for file in files if file is not None])
    if edited:
        raise ReleaseError(
            f"{edited[0]} differs from {release.name}: remove {release.root} to fetch it again, "
            f"or copy it elsewhere and test the copy with --{project.name} PATH"
        )


def _forget(release: Release) -> None:
    """Remove the release's modules from this process, after an import that failed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == release.project.name]:
        del sys.modules[name]
