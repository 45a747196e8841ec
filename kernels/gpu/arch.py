"""The GPU architectures that kernels are written for."""

from enum import StrEnum


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
