"""The inputs of one forward of a recurrent layer."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class StateInputs:
    """The inputs of a forward, by the names of the kernels' arguments."""

    tensors: Mapping[str, torch.Tensor]

    def fill(self, other: "StateInputs") -> None:
        """Copy other inputs into these, which a graph reads."""
        for name, tensor in self.tensors.items():
            tensor.copy_(other.tensors[name])
