"""The pip of this Python, which has no API, only a command."""

import subprocess
import sys
from importlib.machinery import PathFinder

from packaging.version import Version


class PipFailed(RuntimeError):
    """pip failed. The message is its reason in one line."""


class NoPip(PipFailed):
    """pip is not installed."""


def has_pip() -> bool:
    """Return whether this Python has pip.

    Import hooks are not used: before Python 3.12, that of setuptools gives up its distutils for a process that looks
    for pip, and an import of setuptools then raises, as in torch's compiler.
    """
    return PathFinder.find_spec("pip") is not None


def pip(*arguments: str) -> str:
    """Run pip and return its output; $PIP_INDEX_URL and the like apply. Raises PipFailed."""
    if not has_pip():
        raise NoPip("this Python has no pip: python -m ensurepip")
    ran = subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--no-input", "--disable-pip-version-check"],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if ran.returncode:
        raise PipFailed(_reason(ran.stderr) or f"pip ended with {ran.returncode}")
    return ran.stdout


def released(package: str, *options: str) -> list[Version]:
    """List the versions of a package that pip can install, oldest first; no pre-releases. Raises PipFailed.

    `options` are pip's, such as the platform of wheels.
    """
    listing = pip("index", "versions", package, *options)
    line = next((line for line in listing.splitlines() if line.startswith("Available versions:")), "")
    return sorted(map(Version, filter(None, map(str.strip, line.partition(":")[2].split(",")))))


def _reason(errors: str) -> str:
    """Return the last error that pip printed, or its last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    reported = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return next(reversed(reported or lines), "")
