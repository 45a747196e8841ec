"""Modes and sizes of CUDA graphs."""

from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar


class CompilationMode(Enum):
    """Modes of compilation."""

    VLLM_COMPILE = 3


class CUDAGraphMode(Enum):
    """Modes of CUDA graphs."""

    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_AND_PIECEWISE = (2, 1)

    def decode_mode(self) -> "CUDAGraphMode":
        """The mode of decodes."""
        return CUDAGraphMode(self.value[0]) if isinstance(self.value, tuple) else self


@dataclass
class CompilationConfig:
    """What of a model is compiled."""

    _attention_ops: ClassVar[list[str]] = ["vllm::unified_attention"]

    mode: CompilationMode
    cudagraph_mode: CUDAGraphMode
    splitting_ops: list[str]
    cudagraph_capture_sizes: list[int]
    max_cudagraph_capture_size: int
    static_forward_context: dict[str, object] = field(default_factory=dict)
