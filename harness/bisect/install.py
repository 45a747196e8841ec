"""Released versions, each installed by pip into a site of its own, once."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from packaging.version import Version

from attnfuzz.harness.bisect.sites import Site, SiteError, site_at
from attnfuzz.kernels.library_cache import locked
from attnfuzz.kernels.pip import NoPip, PipFailed, pip
from attnfuzz.reference.user_error import UserError


class CannotBeHad(UserError):
    """A version that could not be installed; the message is the reason in a line."""


def site_folder(cache: Path, package: str, version: Version) -> Path:
    """Where a version is kept: by Python's version too, since wheels may hold compiled modules."""
    return cache / "sites" / f"{package}-{version}-{sys.implementation.cache_tag}"


def installed(package: str, version: Version, cache: Path, progress: Callable[[str], None]) -> Site:
    """The site of a released version, installed without its dependencies unless `cache` has it already.

    A folder gets its name when the install is complete, so that an interrupted one is begun anew. Several processes may
    share a cache: they wait for each other. `progress` is told of an install.

    Raises:
        CannotBeHad: pip failed, or installed something else.
        OSError: the cache can't be written to.

    """
    folder = site_folder(cache, package, version)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with locked(folder.with_name(f"{folder.name}.lock")):
            if not folder.exists():
                progress(f"Installing {package} {version} (once).")
                draft = folder.with_name(f".draft-{folder.name}")
                if draft.exists():
                    shutil.rmtree(draft)
                _pip_install(f"{package}=={version}", draft)
                site_at(draft, package, version)
                draft.rename(folder)
        return site_at(folder, package, version)
    except SiteError as error:
        raise CannotBeHad(str(error)) from error


def _pip_install(requirement: str, target: Path) -> None:
    """Have pip install it. Raises CannotBeHad."""
    try:
        pip("install", "--quiet", "--no-deps", "--target", str(target), requirement)
    except NoPip as error:
        raise CannotBeHad(f"{error}, or name its folder with --site") from error
    except PipFailed as error:
        raise CannotBeHad(str(error)) from error
