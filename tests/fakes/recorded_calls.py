"""Stands for a dump: recorded calls whose tensors are in memory instead of a file."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from attnfuzz.harness.calls.literal_calls import literal_arguments
from attnfuzz.harness.dumps.recorded import CallStatus, ForeignTensor, Recorded, RecordedCall
from attnfuzz.reference.calls import CallCase

FOLDER = Path("20261121_120000_000_pid7_call0003")


@dataclass(frozen=True)
class MemoryTensor(ForeignTensor):
    """A tensor of a recorded call; `reads` notes how many entries of the first axis were read, time after time."""

    reads: list[int] = field(default_factory=list)

    def read(self) -> torch.Tensor:
        self.reads.append(self.shape[0] if self.shape else 1)
        return super().read()

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        self.reads.append(len(indices))
        return super().rows(indices)


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
        return MemoryTensor.of(value)
    if isinstance(value, tuple):
        return tuple(MemoryTensor.of(item) for item in value)
    recorded: Recorded = value
    return recorded
