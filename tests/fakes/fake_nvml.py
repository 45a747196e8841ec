"""Stands for NVIDIA's management library on a machine with the GPUs that a test names."""

import importlib.machinery
import inspect
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from attnfuzz.kernels.cuda import discovery, visible

GIB = 1 << 30


@dataclass(frozen=True)
class Chip:
    """A GPU as the library knows it. `slices` are the UUIDs of its MIG devices, each of which has an eighth."""

    name: str
    capability: str
    uuid: str
    memory: int = 80 * GIB
    slices: tuple[str, ...] = ()


H200 = Chip("NVIDIA H200", "9.0", "GPU-aaaa1111-0000-0000-0000-000000000000", slices=("MIG-cccc",))
OTHER_H200 = Chip("NVIDIA H200", "9.0", "GPU-aaaa2222-0000-0000-0000-000000000000")
B200 = Chip("NVIDIA B200", "10.0", "GPU-bbbb0000-0000-0000-0000-000000000000")
L4 = Chip("NVIDIA L4", "8.9", "GPU-dddd0000-0000-0000-0000-000000000000", memory=24 * GIB)


class NVMLError(Exception):
    """What the library raises."""


class NVMLError_LibraryNotFound(NVMLError):  # noqa: N801 - its name there
    """There is no driver."""


def install(
    monkeypatch: pytest.MonkeyPatch, chips: Sequence[Chip] = (), *, error: type[Exception] | None = None
) -> None:
    """Let this machine have these GPUs, all of which are visible, or a library that fails with `error`."""
    library = types.ModuleType("pynvml")
    library.__spec__ = importlib.machinery.ModuleSpec("pynvml", None)

    def begin() -> None:
        if error is not None:
            raise error("as the test wants")

    def found(uuid: str) -> Chip:
        for chip in chips:
            if uuid == chip.uuid or uuid in chip.slices:
                eighth = Chip(f"{chip.name} slice", chip.capability, uuid, chip.memory // 8)
                return eighth if uuid in chip.slices else chip
        raise NVMLError(f"{uuid} is nobody's")

    functions = {
        "NVMLError": NVMLError,
        "NVMLError_LibraryNotFound": NVMLError_LibraryNotFound,
        "nvmlInit": begin,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(chips),
        "nvmlDeviceGetHandleByIndex": lambda index: chips[index],
        "nvmlDeviceGetHandleByUUID": found,
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": lambda part: next(
            chip for chip in chips if part.uuid in chip.slices
        ),
        "nvmlDeviceGetCudaComputeCapability": lambda chip: tuple(map(int, chip.capability.split("."))),
        "nvmlDeviceGetName": lambda chip: chip.name,
        "nvmlDeviceGetMemoryInfo": lambda chip: types.SimpleNamespace(total=chip.memory),
        "nvmlDeviceGetUUID": lambda chip: chip.uuid,
    }
    for name, function in functions.items():
        setattr(library, name, function)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    # The real one asks in another process.
    monkeypatch.setattr(visible, "_found", discovery.found)
    # The real one keeps what it saw.
    monkeypatch.setattr(visible, "_look", inspect.unwrap(visible._look))
