"""Importing a release's modules: a bare package without its __init__, and errors that say which line failed."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from attnfuzz.kernels.releases.errors import Moved, ReleaseError
from attnfuzz.kernels.releases.release import Release
from attnfuzz.kernels.releases.wheels import Wheels


def install_bare_package(release: Release) -> None:
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
    return f"its place in this version is not known to attnfuzz, see kernels/{release.project.name}/loader.py"


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
    """The last line of the release that an error came through, or that Python could not read."""
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
            f"{edited[0]} is not as {release.name} has it: remove {release.root} to fetch it anew, "
            f"or copy it elsewhere and test the copy with --{project.name} PATH"
        )


def forget(release: Release) -> None:
    """Remove the release's modules from this process, after an import that failed."""
    for name in [name for name in sys.modules if name.partition(".")[0] == release.project.name]:
        del sys.modules[name]
