"""A campaign's environment: the versions, CPU and GPUs on which a finding may depend."""

import contextlib
import os
import platform
import shlex
from collections import Counter
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import torch

import attnfuzz
from attnfuzz.kernels.building.bounded_command import TooSlow, output_of
from attnfuzz.kernels.building.library_cache import NoCompiler
from attnfuzz.kernels.native.build import compiler

_PACKAGES = ("flashinfer-python", "hypothesis")
_SECONDS_PER_COMMAND = 5.0
"""nvidia-smi takes a second per GPU without a persistence daemon; a driver that hangs must not hang the campaign."""


def environment() -> dict[str, str]:
    """Return components with their versions or models, without absent ones. Imports no flashinfer: no CUDA context."""
    try:
        command = shlex.split(compiler())
    except NoCompiler:
        command = []
    found = {
        "attnfuzz": _own_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        # torch's own version includes the build, like 2.13.0+cu130; the package's may not.
        "torch": str(torch.__version__),
        **{name: version_of(name) for name in _PACKAGES},
        "cuda": torch.version.cuda,
        **_gpus(),
        "compiler": _output([*command, "--version"]).partition("\n")[0] if command else "",
    }
    return {name: text for name, text in found.items() if text}


def _own_version() -> str:
    """Return the version, and in a checkout git's description."""
    root = Path(attnfuzz.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return attnfuzz.__version__
    revision = _output(["git", "-C", str(root), "describe", "--always", "--dirty=, changed", "--exclude=*"])
    return f"{attnfuzz.__version__} ({revision})" if revision else attnfuzz.__version__


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return f"{value.strip()}, {os.cpu_count()} cores"
    # ARM has no model names.
    return f"{platform.machine()}, {os.cpu_count()} cores"


def version_of(package: str) -> str | None:
    """Return the version of an installed package, or None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpus() -> dict[str, str]:
    """Return the driver, and the names of the GPUs with their number."""
    lines = _output(["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"]).splitlines()
    rows = [tuple(cell.strip() for cell in line.split(",", 1)) for line in lines if "," in line]
    if not rows:
        return {}
    names = Counter(name for _, name in rows)
    return {"driver": rows[0][0], "gpu": ", ".join(f"{number} x {name}" for name, number in names.items())}


def _output(command: Sequence[str]) -> str:
    """Return a command's output, or "" if it is absent, fails or takes too long."""
    try:
        return (output_of(command, seconds=_SECONDS_PER_COMMAND) or "").strip()
    except (OSError, TooSlow):
        return ""
