"""Guarded memory, and the tensors of a launch in it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attnfuzz.harness.memory.arena import Arena
from attnfuzz.harness.memory.guarded import GuardedMemory
from attnfuzz.reference.case import Guard, Outputs


@pytest.fixture
def memory() -> Iterator[GuardedMemory]:
    with Arena() as arena, GuardedMemory(arena, Guard.RIGHT, Outputs.POISONED) as memory:
        yield memory


@pytest.fixture
def tensors(memory: GuardedMemory) -> dict[str, Any]:
    return {"x": memory.copy("x", torch.tensor([1, 2])), "out": memory.copy("out", torch.tensor([0, 0]))}
