"""A GPU's memory on the host."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import fake_guards
import pytest
import torch

from attnfuzz.harness.memory.cuda.arena import CudaArena

if TYPE_CHECKING:
    from fake_driver import FakeDriver


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> "FakeDriver":
    """The driver of a GPU with 8 MiB of memory."""
    pytest.importorskip("cuda.bindings", reason="compares with the installed cuda-bindings")
    from fake_driver import FakeDriver  # noqa: PLC0415 - it needs them too

    fake = FakeDriver(memory=8 << 20)
    fake.install(monkeypatch.setattr)
    fake_guards.install(monkeypatch.setattr)
    return fake


@pytest.fixture
def arena(driver: "FakeDriver") -> Iterator[CudaArena]:
    """An arena on that GPU, which keeps up to 1 MiB at rest."""
    assert not driver.mapped
    with CudaArena(device=torch.device("cpu"), budget=1 << 20) as arena:
        yield arena
