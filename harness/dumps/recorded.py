"""A call as a dump recorded it, before anything is made of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import torch

from attnfuzz.harness.verdict.printable import printable
from attnfuzz.reference.user_error import UserError

Scalar = int | float | str | bool | None


class DumpError(UserError):
    """A dump that can't be read or made into a case: one line that says what is wrong, where, and what to do."""

    def __init__(self, message: str) -> None:
        # It may quote names out of the dump, which may hold what a terminal obeys.
        super().__init__(printable(message).replace("\n", "\N{REPLACEMENT CHARACTER}"))


class CallStatus(StrEnum):
    """How far a recorded call came."""

    CRASHED = "crashed"
    COMPLETED = "completed"
    CAPTURED = "captured in a graph"


class ForeignTensor(Protocol):
    """A tensor of a dump, whose content stays on the disk until it is asked for.

    `stride` is that of the call, in elements; None where the dump lost it, so that a dense layout is all that is known.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype."""
        ...

    @property
    def stride(self) -> tuple[int, ...] | None:
        """Strides of the original, None if lost."""
        ...

    def read(self) -> torch.Tensor:
        """All of it, dense. Raises DumpError."""
        ...

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """The entries of the first axis at `indices` [n] int64, which must lie inside. Reads no more than it must.

        Raises DumpError.
        """
        ...


@dataclass(frozen=True)
class OtherValue:
    """A value that is neither a number nor a tensor: its type's name, and what the dump wrote for it."""

    type_name: str
    text: str


Recorded = ForeignTensor | tuple[ForeignTensor, ...] | Scalar | torch.dtype | OtherValue


@dataclass(frozen=True)
class RecordedCall:
    """One call: the function's name as FlashInfer writes it, and its arguments by their names.

    `sequence` counts the calls of that function in that process, from 1. `arguments` are those that were passed, bound
    to the names of the signature; defaults are not filled in. `self_id` tells the wrapper object of a method, None for
    a function; the object itself is not among the arguments. `outputs` are what it returned, by the dump's names.
    `lost` says what the dump did not keep, a sentence each. `versions` are those in the dump. `snapshot` counts
    the copies of a captured call's tensors, from 1: one after each replay of its graph, and one when the process ended.
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
