"""Results that are compared element by element: of ops whose right results are known as tensors."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class ComparedTensor:
    """A tensor after a step, beside its right contents: both of one shape and dtype.

    `seen` is in the memory of the session's bench. `bound` is the largest absolute error of each element, a floating
    point tensor that broadcasts to the shape; infinite where anything is allowed. Without it, all bits must be right:
    so are integers compared, and memory that an op must leave as it is.
    """

    name: str
    seen: torch.Tensor
    right: torch.Tensor
    bound: torch.Tensor | None = None


@dataclass(frozen=True)
class ComparedResult:
    """The result of a step: all tensors that its op writes or must not change."""

    tensors: tuple[ComparedTensor, ...]
