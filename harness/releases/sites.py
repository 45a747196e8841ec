"""Sites: folders with one version of a package, as `pip install --target` makes them."""

import sys
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.version import InvalidVersion, Version

from attnfuzz.kernels.building.library_cache import folder_made_once
from attnfuzz.kernels.building.pip import NoPip, PipFailed, pip, released
from attnfuzz.reference.user_error import UserError


class SiteError(UserError):
    """A folder doesn't hold the right version; the message has the remedy."""


class CannotBeHad(UserError):
    """A version could not be installed; the message is the reason in a line."""


@dataclass(frozen=True)
class Site:
    """A version of a package, its folder, and the names of its top-level modules."""

    version: Version
    folder: Path
    modules: tuple[str, ...]


def site_at(folder: Path, package: str, version: Version) -> Site:
    """Return the site in `folder`, whose metadata must have `version`. Raises SiteError."""
    if not folder.is_dir():
        raise SiteError(f"{folder} is not a folder: name one that {package} {version} was installed into")
    found = list(metadata.distributions(name=package, path=[str(folder)]))
    install = f"pip install --no-deps --target {folder} {package}=={version}"
    if not found:
        raise SiteError(f"{folder} has no {package}: {install}")
    if len(found) > 1:
        raise SiteError(f"{folder} has the metadata of several versions of {package}: install one into an empty folder")
    there = _version_of(found[0])
    if there is None:
        raise SiteError(f"the metadata of {package} in {folder} names no version: reinstall it, {install}")
    # Like pip: 0.6.8 matches 0.6.8+cu128 too.
    if version not in {there, Version(there.public)}:
        raise SiteError(f"{folder} has {package} {there}, not {version}: name the folder of {version}")
    present = {entry.name.partition(".")[0] for entry in folder.iterdir()}
    modules = tuple(sorted(_modules_of(found[0]) & present))
    if not modules:
        raise SiteError(f"{folder} has the metadata of {package} but none of its modules: reinstall it, {install}")
    return Site(version, folder.resolve(), modules)


def released_versions(package: str) -> list[Version]:
    """List the versions that pip can install. Raises CannotBeHad."""
    try:
        return released(package)
    except PipFailed as error:
        raise CannotBeHad(f"cannot list the versions of {package}: {error}. Name them, like 0.6.8,0.6.9") from error


def site_folder(cache: Path, package: str, version: Version) -> Path:
    """Return the folder of a version; Python's version counts, since wheels may hold compiled modules."""
    return cache / "sites" / f"{package}-{version}-{sys.implementation.cache_tag}"


def installed(package: str, version: Version, cache: Path, progress: Callable[[str], None]) -> Site:
    """Return the site of a released version, installed without its dependencies unless `cache` has it already.

    `progress` gets a line about an install.

    Raises:
        CannotBeHad: pip failed, or installed another version.
        OSError: the cache can't be written to.

    """

    def install(draft: Path) -> None:
        progress(f"Installing {package} {version} (once).")
        _pip_install(f"{package}=={version}", draft)
        site_at(draft, package, version)

    try:
        return site_at(folder_made_once(site_folder(cache, package, version), install), package, version)
    except SiteError as error:
        raise CannotBeHad(str(error)) from error


def _pip_install(requirement: str, target: Path) -> None:
    """Install by pip. Raises CannotBeHad."""
    try:
        pip("install", "--quiet", "--no-deps", "--target", str(target), requirement)
    except NoPip as error:
        raise CannotBeHad(f"{error}, or name its folder with --site") from error
    except PipFailed as error:
        raise CannotBeHad(str(error)) from error


def _version_of(distribution: metadata.Distribution) -> Version | None:
    fields = distribution.metadata
    # Since Python 3.12, reading a field that is missing is deprecated.
    if "Version" not in fields:
        return None
    try:
        return Version(fields["Version"])
    except InvalidVersion:
        return None


def _modules_of(distribution: metadata.Distribution) -> AbstractSet[str]:
    """Read the names of importable modules from top_level.txt, which not every build tool writes, or from the files."""
    named = (distribution.read_text("top_level.txt") or "").split()
    names = named or [file.parts[0].partition(".")[0] for file in distribution.files or ()]
    return {name for name in names if name.isidentifier() and name != "__pycache__"}
