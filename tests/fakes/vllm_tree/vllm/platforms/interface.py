"""What a platform says of itself."""

from enum import Enum, auto
from typing import NamedTuple


class PlatformEnum(Enum):
    """Kinds of platforms."""

    CUDA = auto()
    CPU = auto()


class DeviceCapability(NamedTuple):
    """A compute capability."""

    major: int
    minor: int


class Platform:
    """A platform."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        """Its compute capability."""
        raise NotImplementedError

    @classmethod
    def is_device_capability_family(cls, capability: int) -> bool:
        """Whether its major capability is that of `capability`."""
        return cls.get_device_capability().major == capability // 10
