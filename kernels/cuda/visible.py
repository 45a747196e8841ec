"""The visible GPUs, according to NVIDIA's management library, which creates no CUDA context: workers can still fork."""

import ctypes
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import torch

from attnfuzz.kernels.building.bounded_command import TooSlow, output_of
from attnfuzz.kernels.building.library_cache import environment
from attnfuzz.kernels.cuda import discovery, toolkit


class Arch(StrEnum):
    """An architecture, by CUDA's compute capability."""

    AMPERE = "8.0"
    ADA = "8.9"
    HOPPER = "9.0"
    BLACKWELL = "10.0"
    BLACKWELL_ULTRA = "10.3"
    BLACKWELL_RTX = "12.0"

    @property
    def words(self) -> str:
        """Its name and number for display."""
        return f"{self.name.replace('_', ' ').title().replace('Rtx', 'RTX')} (SM{self.value.replace('.', '')})"


_VISIBLE = "CUDA_VISIBLE_DEVICES"
_HOPPER_PROCESSORS = 132
"""Streaming multiprocessors of an H100 or H200 (SXM)."""
_LIBRARY = "pynvml"
_DRIVER_SECONDS = 20.0
"""Time limit for the driver's answer. Without a persistence daemon it takes a second per GPU."""
_INSTALL = {
    "flashinfer": "attnfuzz[gpu]",
    _LIBRARY: "attnfuzz[gpu]",
    "cudnn": "nvidia-cudnn-frontend",
    "cutlass": "nvidia-cutlass-dsl",
}
"""Names to install of packages that are imported under another name."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that CUDA_VISIBLE_DEVICES lets a process use.

    `index` is its number among these, `uuid` its name for CUDA_VISIBLE_DEVICES in a child's environment. `capability`
    is CUDA's, such as 9.0; `memory` in bytes.
    """

    index: int
    name: str
    capability: str
    memory: int
    uuid: str


def visible() -> tuple[Gpu, ...]:
    """List the GPUs that this process may use, in CUDA_VISIBLE_DEVICES' order; none without a driver.

    If GPUs differ, numbers are those of CUDA_DEVICE_ORDER=PCI_BUS_ID, the order of the library.
    """
    gpus, _ = _look(os.environ.get(_VISIBLE))
    return gpus


def architecture() -> str:
    """Return the architecture of the first visible GPU, as used by calibrations: sm_90, or "no GPU"."""
    gpus = visible()
    return f"sm_{gpus[0].capability.replace('.', '')}" if gpus else "no GPU"


def missing(archs: frozenset[Arch], needs: tuple[str, ...]) -> str | None:
    """Return why kernels for `archs` with these Python packages can't run here, in one line; None if they can."""
    return _without_gpu(archs) or without_packages(needs) or toolkit.missing()


def _without_gpu(archs: frozenset[Arch]) -> str | None:
    wanted = _words(archs)
    gpus, reason = _look(os.environ.get(_VISIBLE))
    if not gpus:
        known = "which this machine lacks" if without_packages([_LIBRARY]) is None else "which can't be detected"
        return f"needs {wanted}, {known}: {reason}"
    # Workers are spread over all of them.
    others = {gpu.name: gpu.capability for gpu in gpus if gpu.capability not in archs}
    if others:
        have = ", ".join(f"{name} (SM{capability.replace('.', '')})" for name, capability in others.items())
        advice = "" if len(others) == len({gpu.name for gpu in gpus}) else ": leave it out of CUDA_VISIBLE_DEVICES"
        return f"needs {wanted}, and this machine has {have}{advice}"
    if torch.version.cuda is None:
        return "PyTorch is a build without CUDA: install one with it (https://pytorch.org/get-started)"
    return None


def _words(archs: frozenset[Arch]) -> str:
    if archs == set(Arch):
        return "an NVIDIA GPU"
    return f"a GPU of {' or '.join(arch.words for arch in Arch if arch in archs)}"


def without_packages(needs: Sequence[str]) -> str | None:
    """Name the first missing Python package, with the command that installs it; None if none is missing."""
    for name in needs:
        # Finds the package without importing it, which would create a CUDA context.
        if importlib.util.find_spec(name) is None:
            return _not_installed(name)
    return None


def _not_installed(name: str) -> str:
    return f"package {name} is not installed: pip install '{_INSTALL.get(name, name)}'"


@cache
def _look(chosen: str | None) -> tuple[tuple[Gpu, ...], str]:
    """Look for the GPUs selected by `chosen`, the value of CUDA_VISIBLE_DEVICES. Returns why there are none, too."""
    if (lacking := without_packages([_LIBRARY])) is not None:
        return (), lacking
    answer = _found(chosen)
    if "reason" in answer:
        return (), answer["reason"]
    if not answer["present"]:
        return (), "NVIDIA's driver finds no device"
    gpus = tuple(Gpu(index=index, **gpu) for index, gpu in enumerate(answer["gpus"]))
    return gpus, f"CUDA_VISIBLE_DEVICES={chosen!r} names none of this machine's {answer['present']}"


def _found(chosen: str | None) -> dict[str, Any]:
    """Return the answer of `discovery.found`, from a process that is left behind if the driver does not answer."""
    if not _has_driver():
        return {"reason": "it has no NVIDIA driver"}
    # Without its folder on the path, which has modules of common names.
    command = [sys.executable, "-P", discovery.__file__, *([] if chosen is None else [chosen])]
    try:
        text = output_of(command, seconds=_DRIVER_SECONDS)
    except TooSlow:
        return {"reason": f"NVIDIA's driver did not answer within {_DRIVER_SECONDS:g} s"}
    if text is None:
        return {"reason": "NVIDIA's management library can't be used"}
    answer: dict[str, Any] = json.loads(text)
    return answer


def _has_driver() -> bool:
    """Return whether the driver's management library is installed. Loading it asks the driver nothing."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of `device`, by which kernels split their work and size their workspaces.

    On the CPU, where sessions can be planned but not run, it is that of an H100.
    """
    if device.type == "cpu":
        return _HOPPER_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def no_gpu_visible() -> AbstractContextManager[None]:
    """Hide all devices from CUDA temporarily. Workers that are forked afterwards see theirs.

    Code that needs a GPU meanwhile must not get a CUDA context, with which no process can fork.
    """
    return environment(**{_VISIBLE: ""})
