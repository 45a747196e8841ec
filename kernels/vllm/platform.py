"""The GPU that a release believes it runs on, while its tensors lie on the CPU."""

import sys
from typing import Any

from attnfuzz.kernels.releases.stand_ins import MULTIPROCESSORS


def claim(interface: Any, capability: tuple[int, int]) -> Any:
    """Make a platform of the module `vllm.platforms.interface` that claims a CUDA GPU of that compute capability."""
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
            """Claim another compute capability, of which nothing is remembered."""
            if claimed[0] != capability:
                claimed[0] = capability
                _forget_answers()

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:  # noqa: ARG003
            return "a claimed GPU"

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:  # noqa: ARG003
            return MULTIPROCESSORS

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            # Nothing is pinned on a machine without a GPU.
            return False

        @classmethod
        def import_kernels(cls) -> None:
            # They are compiled for a server.
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
