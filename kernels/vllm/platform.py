"""The platform that a release finds: a simulated GPU, with tensors on the CPU, or none."""

import importlib.metadata
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from attnfuzz.kernels.releases.imports import imported
from attnfuzz.kernels.releases.release import Release
from attnfuzz.kernels.releases.stand_ins import MULTIPROCESSORS


def set_platform(release: Release, platform: Any) -> None:
    """Set the platform, which modules read while they are imported."""
    # By its name in the module: assigning to `current_platform` would hide it.
    imported(release, "vllm.platforms")._current_platform = platform  # noqa: SLF001


@contextmanager
def built_as(release: Release, version: str) -> Iterator[None]:
    """Report a version of the release's package as installed: it decides by it whether to use Triton."""
    own = importlib.metadata.version

    def answer(package: str) -> str:
        return version if package == release.project.name else own(package)

    with mock.patch.object(importlib.metadata, "version", answer):
        yield


def claim(interface: Any, capability: tuple[int, int], *, real: bool) -> Any:
    """Create a platform, from the module `vllm.platforms.interface`, that reports a CUDA GPU of a compute capability.

    `real` says whether processes that use the platform get one.
    """
    claimed = [capability]

    class ClaimedGpu(interface.Platform):  # type: ignore[misc] # a class of the release
        _enum = interface.PlatformEnum.CUDA
        device_name = device_type = ray_device_key = "cuda"
        dispatch_key = "CUDA"

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:  # noqa: ARG003
            return interface.DeviceCapability(*claimed[0])

        @classmethod
        def become(cls, capability: tuple[int, int]) -> None:
            """Report another compute capability, and clear cached answers about the last one."""
            if claimed[0] != capability:
                claimed[0] = capability
                _forget_answers()

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:  # noqa: ARG003
            return "a claimed GPU"

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return torch.cuda.get_device_properties(device_id).multi_processor_count if real else MULTIPROCESSORS

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return real

        @classmethod
        def import_kernels(cls) -> None:
            # The compiled kernels are not loaded.
            pass

    return ClaimedGpu()


def _forget_answers() -> None:
    """Clear the caches of functions of vLLM, which may depend on the GPU (0.33.0: utils/flashinfer.py, @cache)."""
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm."):
            for member in list(vars(module).values()):
                # Stubs answer any name.
                clear = getattr(member, "cache_clear", None) if type(member).__name__ == "_lru_cache_wrapper" else None
                if clear is not None:
                    clear()
