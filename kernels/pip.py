"""The pip of this Python. It has no API, only a command."""

import importlib.util
import subprocess
import sys


class PipFailed(RuntimeError):
    """pip failed; the message is its reason in one line."""


class NoPip(PipFailed):
    """pip is not installed."""


def pip(*arguments: str) -> str:
    """Run pip and return its output; $PIP_INDEX_URL and the like apply. Raises PipFailed."""
    if importlib.util.find_spec("pip") is None:
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


def _reason(errors: str) -> str:
    """The last error that pip printed, or its last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    reported = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return next(reversed(reported or lines), "")
