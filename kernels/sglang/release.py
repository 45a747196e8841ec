"""A release of SGLang on the disk: an unpacked wheel of PyPI's, or a source tree, which may be a checkout."""

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

from attnfuzz.kernels.sglang import wheel
from attnfuzz.kernels.sglang.errors import NotATree

_SOURCE = Path("sglang", "srt", "layers", "attention")
"""What a folder has that holds the package's source, and a folder of its documentation has not."""

_WRITTEN_VERSION = re.compile(r"""^__version__\s*=.*?["']([^"']+)["']""", re.MULTILINE)
_PRETEND = "SETUPTOOLS_SCM_PRETEND_VERSION"


@dataclass(frozen=True)
class Release:
    """What can be loaded.

    Attributes:
        name: As a backend's name begins with it, `sglang==0.5.9` or `sglang@/path/of/a/tree`.
        version: Of a tree, the version that it is on the way to, such as 0.5.24.dev3.
        root: The folder that holds the package's folder `sglang`.
        flashinfer: The version of FlashInfer that it pins; None if it takes any.

    """

    name: str
    version: Version
    root: Path
    flashinfer: Version | None


def release_of(name: str, progress: Callable[[str], None] = lambda _: None) -> Release:
    """Return `sglang==VERSION`, fetched unless it is in the cache, or `sglang@PATH`. Raises ReleaseError.

    The name is that of a `Named.release`. `progress` reports a fetch, which takes seconds.
    """
    if name.startswith("sglang@"):
        return _tree(name, Path(name.removeprefix("sglang@")))
    version = Version(name.removeprefix("sglang=="))
    root = wheel.unpacked(version, progress)
    return Release(name, version, root, _flashinfer_of_wheel(root))


def _tree(name: str, path: Path) -> Release:
    """Return the source tree at `path`, or in its folder python/. Raises NotATree."""
    root = next((each for each in (path, path / "python") if (each / _SOURCE).is_dir()), None)
    if root is None:
        raise NotATree(f"{path} holds no source of SGLang: name a checkout, its python/ folder or an unpacked wheel")
    root = root.resolve()
    text = _version(root)
    if text is None:
        raise NotATree(
            f"{path} does not say which version it is: git fetch --tags, or name the release that it began from, "
            f"{_PRETEND}=0.5.9"
        )
    try:
        version = Version(text)
    except InvalidVersion:
        raise NotATree(f"{path} says that it is version {text!r}, which is none: set {_PRETEND}=0.5.9") from None
    flashinfer = _flashinfer_of_wheel(root) or _flashinfer_of_project(root / "pyproject.toml")
    return Release(name, version, root, flashinfer)


def _version(root: Path) -> str | None:
    """What the tree says of its version, the most explicit first. A build's leavings may be older than git's tags."""
    return os.environ.get(_PRETEND) or _in_metadata(root) or _in_git(root) or _in_build(root)


def _in_metadata(root: Path) -> str | None:
    """A wheel's own."""
    found = next((path for path in root.glob("sglang-*.dist-info") if path.is_dir()), None)
    return str(metadata.PathDistribution(found).metadata["Version"] or "") or None if found else None


def _in_git(root: Path) -> str | None:
    """The last tag before what is checked out, and how many commits it is behind."""
    # Not those of a repository that happens to have the tree somewhere in it.
    if _git(root, "rev-parse", "--show-toplevel") not in {str(root), str(root.parent)}:
        return None
    told = re.fullmatch(r"v(.+)-(\d+)-g[0-9a-f]+", _git(root, "describe", "--tags", "--long", "--match", "v[0-9]*"))
    if not told:
        return None
    tag, commits = told.groups()
    return tag if commits == "0" else f"{tag}+{commits}"


def _git(folder: Path, *arguments: str) -> str:
    """What git says there, or nothing."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return "" if ran.returncode else ran.stdout.strip()


def _in_build(root: Path) -> str | None:
    """What a build wrote into the package (setuptools-scm, _version.py)."""
    try:
        found = _WRITTEN_VERSION.search((root / "sglang" / "_version.py").read_text())
    except OSError:
        return None
    return found.group(1) if found else None


def _flashinfer_of_wheel(root: Path) -> Version | None:
    """What the metadata of the `sglang` in `root` pins; None if it pins no version."""
    found = next(iter(metadata.distributions(name="sglang", path=[str(root)])), None)
    return _pinned(found.requires or ()) if found else None


def _flashinfer_of_project(pyproject: Path) -> Version | None:
    """What the dependencies in a pyproject.toml pin; None if they pin no version or can't be read."""
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
