"""The GPU that a release believes it runs on, while its tensors lie on the CPU."""

from typing import Any, Final

from attnfuzz.kernels.releases.stand_ins import MULTIPROCESSORS

BLACKWELL: Final = (10, 0)
"""A compute capability on which vLLM plans for trtllm-gen's kernels."""


def claim(interface: Any, capability: tuple[int, int]) -> Any:
    """Make a platform of the module `vllm.platforms.interface` that claims a CUDA GPU of that compute capability."""

    class ClaimedGpu(interface.Platform):  # type: ignore[misc] # a class of the release
        _enum = interface.PlatformEnum.CUDA
        device_name = device_type = ray_device_key = "cuda"
        dispatch_key = "CUDA"

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:  # noqa: ARG003
            return interface.DeviceCapability(*capability)

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
