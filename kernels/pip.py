"""The pip of this Python, which is to be had as a command only."""

import importlib.util
import subprocess
import sys


class PipFailed(RuntimeError):
    """pip could not do it; the message is its reason in a line."""


class NoPip(PipFailed):
    """There is none to be had."""


def pip(*arguments: str) -> str:
    """Run pip and give what it printed; $PIP_INDEX_URL and the like hold. Raises PipFailed."""
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
    """The last error that pip printed, or else its last line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    told = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return next(reversed(told or lines), "")
