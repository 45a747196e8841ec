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
class ComparedLists:
    """Lists int [rows, k] after a step, each of which must have the k highest scores of its row, in any order.

    `seen` is in the memory of the session's bench. Row r has the scores float32 [n] of `scores[r]`, whose positions
    have the names int [n] of `names[r]`, or none. Equal scores have several right lists. -1 is behind n entries.
    """

    name: str
    seen: torch.Tensor
    scores: tuple[torch.Tensor, ...]
    names: tuple[torch.Tensor, ...] | None = None


@dataclass(frozen=True)
class ComparedResult:
    """The result of a step: all tensors that its op writes or must not change, and lists that it selects."""

    tensors: tuple[ComparedTensor, ...] = ()
    lists: tuple[ComparedLists, ...] = ()
