"""Recorded calls without a dump: tensors that lie in memory instead of in a file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attnfuzz.harness.calls.literal_calls import literal_arguments
from attnfuzz.harness.dumps.recorded import CallStatus, Recorded, RecordedCall
from attnfuzz.harness.dumps.tensor_files import entries_of
from attnfuzz.reference.calls import CallCase

FOLDER = Path("20261121_120000_000_pid7_call0003")


@dataclass(frozen=True)
class MemoryTensor:
    """A tensor of a recorded call; `reads` notes how many entries of the first axis were read, time after time."""

    tensor: torch.Tensor
    stride: tuple[int, ...] | None = None
    reads: list[int] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def read(self) -> torch.Tensor:
        self.reads.append(len(self.tensor) if self.tensor.ndim else 1)
        return self.tensor.contiguous()

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        self.reads.append(len(indices))
        return entries_of(self.tensor, indices)


def recorded_call(function: str, arguments: Mapping[str, Any], **changes: Any) -> RecordedCall:
    """A call that crashed, with these arguments; tensors keep the strides that they have."""
    fields: dict[str, Any] = {
        "folder": FOLDER,
        "function": function,
        "module": "flashinfer",
        "sequence": 3,
        "process": 7,
        "status": CallStatus.CRASHED,
        "arguments": {name: _recorded(value) for name, value in arguments.items()},
        "outputs": {},
        "self_id": None,
        "lost": (),
        "versions": {},
    }
    return RecordedCall(**(fields | changes))


def as_recorded(case: CallCase, index: int = -1, **changes: Any) -> RecordedCall:
    """A call of a case, as it would have been recorded: with strides, and without the answer."""
    index %= len(case.calls)
    return recorded_call(case.calls[index].op, literal_arguments(case, index), **changes)


def _recorded(value: Any) -> Recorded:
    if isinstance(value, torch.Tensor):
        return MemoryTensor(value, tuple(value.stride()))
    if isinstance(value, tuple):
        return tuple(MemoryTensor(item, tuple(item.stride())) for item in value)
    recorded: Recorded = value
    return recorded
