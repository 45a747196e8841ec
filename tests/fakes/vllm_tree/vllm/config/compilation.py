"""Modes of CUDA graphs."""

from enum import Enum


class CUDAGraphMode(Enum):
    """Modes of CUDA graphs."""

    FULL = 2
    FULL_AND_PIECEWISE = (2, 1)

    def decode_mode(self) -> "CUDAGraphMode":
        """The mode of decodes."""
        return CUDAGraphMode.FULL
