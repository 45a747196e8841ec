"""A release on disk: an unpacked wheel from PyPI, or a source tree, which may be a checkout."""

import os
import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from attnfuzz.kernels.releases.errors import ReleaseError
from attnfuzz.kernels.releases.project import Project
from attnfuzz.kernels.releases.wheels import Wheels

_WRITTEN_VERSION = re.compile(r"""^__version__\s*=.*?["']([^"']+)["']""", re.MULTILINE)
_PRETEND = "SETUPTOOLS_SCM_PRETEND_VERSION"


@dataclass(frozen=True)
class Release:
    """A release that can be loaded.

    Attributes:
        project: Its project.
        name: The beginning of its backends' names, `sglang==0.5.9` or `sglang@/path/of/a/tree`.
        version: Its version; of a tree, the version under development, such as 0.5.24.dev3.
        root: The folder that holds the package's folder.
        flashinfer: The version of FlashInfer that it pins; None if it takes any.

    """

    project: Project
    name: str
    version: Version
    root: Path
    flashinfer: Version | None


def release_of(project: Project, name: str, progress: Callable[[str], None] = lambda _: None) -> Release:
    """Return a release such as `sglang==VERSION`, fetched unless it is cached, or `sglang@PATH`. Raises ReleaseError.

    The name is that of a `Named.release`. `progress` reports a fetch, which takes seconds.
    """
    if name.startswith(project.tree):
        return _tree(project, name, Path(name.removeprefix(project.tree)))
    version = Version(name.removeprefix(project.released))
    root = Wheels(project).unpacked(version, progress)
    return Release(project, name, version, root, _flashinfer_of_wheel(project, root))


def _tree(project: Project, name: str, path: Path) -> Release:
    """Return the source tree at `path`, or in its folder python/. Raises ReleaseError."""
    root = next((each for each in (path, path / "python") if (each / project.source).is_dir()), None)
    if root is None:
        raise ReleaseError(
            f"{path} holds no source of {project.title}: name a checkout, its python/ folder or an unpacked wheel"
        )
    root = root.resolve()
    text = _version(project, root)
    if text is None:
        raise ReleaseError(
            f"{path} does not say which version it is: git fetch --tags, or name the release that it began from, "
            f"{_PRETEND}={project.oldest}"
        )
    try:
        version = Version(text)
    except InvalidVersion:
        raise ReleaseError(
            f"{path} says that it is version {text!r}, which is none: set {_PRETEND}={project.oldest}"
        ) from None
    flashinfer = _flashinfer_of_wheel(project, root) or _flashinfer_of_project(root / "pyproject.toml")
    return Release(project, name, version, root, flashinfer)


def _version(project: Project, root: Path) -> str | None:
    """Read the tree's version from the most explicit source. Leftovers of a build may be older than git's tags."""
    return os.environ.get(_PRETEND) or _in_metadata(project, root) or _in_git(root) or _in_build(project, root)


def _in_metadata(project: Project, root: Path) -> str | None:
    """Read the version in a wheel's metadata."""
    found = next((path for path in root.glob(f"{project.file_name}-*.dist-info") if path.is_dir()), None)
    if found is None:
        return None
    fields = metadata.PathDistribution(found).metadata
    return str(fields["Version"]) or None if "Version" in fields else None


def _in_git(root: Path) -> str | None:
    """Describe the last tag before the checked-out commit, and the number of commits since."""
    # Ignores the tags of a repository that merely contains the tree.
    if _git(root, "rev-parse", "--show-toplevel") not in {str(root), str(root.parent)}:
        return None
    described = re.fullmatch(
        r"v(.+)-(\d+)-g[0-9a-f]+", _git(root, "describe", "--tags", "--long", "--match", "v[0-9]*")
    )
    if not described:
        return None
    tag, commits = described.groups()
    return tag if commits == "0" else f"{tag}+{commits}"


def _git(folder: Path, *arguments: str) -> str:
    """Run git in a folder. Returns its output, or an empty string."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return "" if ran.returncode else ran.stdout.strip()


def _in_build(project: Project, root: Path) -> str | None:
    """Read the version that a build wrote into the package (setuptools-scm, _version.py)."""
    try:
        found = _WRITTEN_VERSION.search((root / project.name / "_version.py").read_text())
    except OSError:
        return None
    return found.group(1) if found else None


def _flashinfer_of_wheel(project: Project, root: Path) -> Version | None:
    """Read the version pinned by the metadata of the package in `root`; None if it pins none."""
    found = next(iter(metadata.distributions(name=project.on_pypi, path=[str(root)])), None)
    return _pinned(found.requires or ()) if found else None


def _flashinfer_of_project(pyproject: Path) -> Version | None:
    """Read the version pinned by dependencies in a pyproject.toml; None if they pin none or can't be read."""
    try:
        requirements = tomllib.loads(pyproject.read_text())["project"]["dependencies"]
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError):
        return None
    return _pinned(each for each in requirements if isinstance(each, str))


def _pinned(requirements: Iterable[str]) -> Version | None:
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.name.replace("_", "-").lower() == "flashinfer-python":
            exact = [each.version for each in requirement.specifier if each.operator == "=="]
            return Version(exact[0]) if exact and not exact[0].endswith("*") else None
    return None
