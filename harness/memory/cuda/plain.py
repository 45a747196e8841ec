"""A GPU's memory without guards, from torch's allocator: what benchmarks compare guarded memory with."""

import torch

from attnfuzz.harness.memory.cuda import device_bytes
from attnfuzz.harness.memory.plain import PlainMemory
from attnfuzz.harness.memory.poison import Pattern
from attnfuzz.reference.case import Outputs


class PlainCudaMemory(PlainMemory):
    """Tensors on `device` with the fills of guarded memory. Finds no damage."""

    def __init__(self, outputs: Outputs, device: torch.device) -> None:
        super().__init__(outputs, device)

    def _write(self, pattern: Pattern, address: int, nbytes: int) -> None:
        device_bytes.fill(pattern, address, nbytes, self._device)
