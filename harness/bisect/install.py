"""Released versions, each installed by pip into a site of its own, once."""

import fcntl
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from packaging.version import Version

from attnfuzz.harness.bisect.sites import Site, SiteError, site_at


class CannotBeHad(RuntimeError):
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
        with _locked(folder.with_name(f"{folder.name}.lock")):
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


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pip_install(requirement: str, target: Path) -> None:
    """Have this Python's pip install it; $PIP_INDEX_URL and the like hold. Raises CannotBeHad."""
    if importlib.util.find_spec("pip") is None:
        raise CannotBeHad("this Python has no pip: python -m ensurepip, or name its folder with --site")
    options = ("--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--target", str(target))
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, requirement],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if ran.returncode:
        raise CannotBeHad(_reason(ran.stderr) or f"pip ended with {ran.returncode}")


def _reason(errors: str) -> str:
    """The last error that pip printed, or else its last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    told = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return next(reversed(told or lines), "")
