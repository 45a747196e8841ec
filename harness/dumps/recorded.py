"""A call as recorded in a dump."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

import torch

from attnfuzz.harness.verdict.printable import printable
from attnfuzz.reference.user_error import UserError

_BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Scalar = int | float | str | bool | None


class DumpError(UserError):
    """A dump that can't be read or made into a case: one line with the fault, its place, and the remedy."""

    def __init__(self, message: str) -> None:
        # It may quote names from the dump with terminal escapes.
        super().__init__(printable(message).replace("\n", "\N{REPLACEMENT CHARACTER}"))


class CallStatus(StrEnum):
    """How far a recorded call got."""

    CRASHED = "crashed"
    COMPLETED = "completed"
    CAPTURED = "captured in a graph"


@dataclass(frozen=True)
class ForeignTensor:
    """A tensor of a dump, whose content stays on disk until it is loaded.

    `stride` is that of the call, in elements; None if the dump lost it and only the dense layout is known. `load`
    returns the tensor, with any strides. Raises DumpError.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...] | None
    load: Callable[[], torch.Tensor]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Self:
        """Wrap a tensor in memory."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.stride(), lambda: tensor)

    def read(self) -> torch.Tensor:
        """Load it dense; a view of the file if that is dense. Raises DumpError."""
        return self.load().contiguous()

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Read entries of the first axis at `indices` [n] int64, in range, and no others. Raises DumpError."""
        # As bits: torch can't index some dtypes, uint32 among them.
        bits = _BITS.get(self.dtype.itemsize, self.dtype)
        return self.load().view(bits).index_select(0, indices).view(self.dtype)


@dataclass(frozen=True)
class OtherValue:
    """A value that is neither a number nor a tensor: its type's name and its recorded text."""

    type_name: str
    text: str


Recorded = ForeignTensor | tuple[ForeignTensor, ...] | Scalar | torch.dtype | OtherValue


@dataclass(frozen=True)
class RecordedCall:
    """One call: FlashInfer's name of the function, and its arguments by name.

    `sequence` counts the calls of that function in that process, from 1. `arguments` are the passed ones, bound to the
    signature's names, without defaults. `self_id` identifies the wrapper object of a method, None for a function; the
    object itself is not among the arguments. `outputs` are the results, by the dump's names. `lost` describes
    information that the dump did not keep, a sentence each. `versions` are those in the dump. `snapshot` counts the
    copies of a captured call's tensors, from 1: one after each replay of its graph, and one when the process ended.
    """

    folder: Path
    function: str
    module: str
    sequence: int
    process: int
    status: CallStatus
    arguments: Mapping[str, Recorded]
    outputs: Mapping[str, Recorded]
    self_id: int | None
    lost: tuple[str, ...]
    versions: Mapping[str, str]
    snapshot: int | None = None
