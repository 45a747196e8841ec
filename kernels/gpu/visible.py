"""Which GPUs there are, asked of NVIDIA's management library: that makes no CUDA context, so that workers can fork."""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from types import ModuleType

import torch

from attnfuzz.kernels.gpu import toolkit
from attnfuzz.kernels.library_cache import environment


class Arch(StrEnum):
    """An architecture, by the compute capability that CUDA gives it."""

    AMPERE = "8.0"
    ADA = "8.9"
    HOPPER = "9.0"
    BLACKWELL = "10.0"
    BLACKWELL_ULTRA = "10.3"
    BLACKWELL_RTX = "12.0"

    @property
    def words(self) -> str:
        """Its name and number, as people say it."""
        return f"{self.name.replace('_', ' ').title().replace('Rtx', 'RTX')} (SM{self.value.replace('.', '')})"


_VISIBLE = "CUDA_VISIBLE_DEVICES"
_HOPPER_PROCESSORS = 132
"""Streaming multiprocessors of an H100 or H200 (SXM)."""
_INSTALL = {"flashinfer": "attnfuzz[gpu]", "pynvml": "attnfuzz[gpu]", "cudnn": "nvidia-cudnn-frontend"}
"""What to install for a package that is imported under another name."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that CUDA_VISIBLE_DEVICES lets a process use.

    `index` is its number among these, `uuid` what CUDA_VISIBLE_DEVICES may call it in a child's environment.
    `capability` is CUDA's, like 9.0; `memory` in bytes.
    """

    index: int
    name: str
    capability: str
    memory: int
    uuid: str


def visible() -> tuple[Gpu, ...]:
    """The GPUs that this process may use, in CUDA_VISIBLE_DEVICES' order; none where there is no driver.

    Where GPUs differ, numbers are those of CUDA_DEVICE_ORDER=PCI_BUS_ID, which is how the library counts.
    """
    gpus, _ = _look(os.environ.get(_VISIBLE))
    return gpus


def architecture() -> str:
    """What calibrations on the first visible GPU are filed under, like sm_90; "no GPU" if there is none."""
    gpus = visible()
    return f"sm_{gpus[0].capability.replace('.', '')}" if gpus else "no GPU"


def missing(archs: frozenset[Arch], needs: tuple[str, ...]) -> str | None:
    """Why kernels for `archs`, which need the Python packages `needs`, can't run here, in a line; None if they can."""
    return _without_gpu(archs) or without_packages(needs) or toolkit.missing()


def _without_gpu(archs: frozenset[Arch]) -> str | None:
    wanted = _words(archs)
    gpus, reason = _look(os.environ.get(_VISIBLE))
    if not gpus:
        return f"needs {wanted}, which this machine lacks: {reason}"
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
    """Which of these Python packages is not installed, in a line that says how to install it."""
    for name in needs:
        # Looks for the package and does not import it: that would create a CUDA context.
        if importlib.util.find_spec(name) is None:
            return _not_installed(name)
    return None


def _not_installed(name: str) -> str:
    return f"package {name} is not installed: pip install '{_INSTALL.get(name, name)}'"


@cache
def _look(chosen: str | None) -> tuple[tuple[Gpu, ...], str]:
    """The GPUs that `chosen`, the value of CUDA_VISIBLE_DEVICES, leaves; and why there is none."""
    if importlib.util.find_spec("pynvml") is None:
        return (), _not_installed("pynvml")
    # Imported late: only machines with a GPU need it.
    import pynvml  # noqa: PLC0415

    try:
        with _session(pynvml):
            present = [_gpu(pynvml, pynvml.nvmlDeviceGetHandleByIndex(n)) for n in range(pynvml.nvmlDeviceGetCount())]
            found = present if chosen is None else list(_chosen(pynvml, present, chosen))
    except pynvml.NVMLError_LibraryNotFound:
        return (), "it has no NVIDIA driver"
    except pynvml.NVMLError as error:
        return (), f"NVIDIA's driver does not answer ({error})"
    if not present:
        return (), "NVIDIA's driver finds no device"
    numbered = tuple(replace(gpu, index=index) for index, gpu in enumerate(found))
    return numbered, f"CUDA_VISIBLE_DEVICES={chosen!r} names none of this machine's {len(present)}"


@contextmanager
def _session(nvml: ModuleType) -> Iterator[None]:
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: ModuleType, handle: object) -> Gpu:
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Gpu(
        index=0,
        name=nvml.nvmlDeviceGetName(handle),
        capability=f"{major}.{minor}",
        memory=nvml.nvmlDeviceGetMemoryInfo(handle).total,
        uuid=nvml.nvmlDeviceGetUUID(handle),
    )


def _chosen(nvml: ModuleType, present: Sequence[Gpu], chosen: str) -> Iterator[Gpu]:
    """What a list of numbers, UUIDs or beginnings of UUIDs names. CUDA ignores what comes after one that names none.

    See https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html#env-vars
    """
    for entry in (part.strip() for part in chosen.split(",")):
        if entry.startswith("MIG-"):
            # A slice of a GPU: its architecture, and at most its memory. CUDA takes no second one.
            handle = nvml.nvmlDeviceGetHandleByUUID(entry)
            whole = _gpu(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
            yield replace(whole, memory=nvml.nvmlDeviceGetMemoryInfo(handle).total, uuid=entry)
            return
        if entry.isdecimal():
            named = [present[int(entry)]] if int(entry) < len(present) else []
        else:
            named = [gpu for gpu in present if entry and gpu.uuid.startswith(entry)]
        if len(named) != 1:
            return
        yield named[0]


def processors(device: torch.device) -> int:
    """The multiprocessors of `device`, by which kernels split their work and size their workspaces.

    An H100's where it is the CPU, on which sessions can be planned and not run.
    """
    if device.type == "cpu":
        return _HOPPER_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


def no_gpu_visible() -> AbstractContextManager[None]:
    """Have CUDA find no device. Workers that are forked afterwards see theirs.

    What asks for a GPU in the meantime must get no CUDA context, which no fork survives.
    """
    return environment(**{_VISIBLE: ""})
