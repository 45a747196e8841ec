"""What the tests on a GPU share: they are skipped where there is none, and each leaves the GPU as it found it."""

from collections.abc import Iterator

import pytest
import torch

from attnfuzz.harness.memory.cuda.arena import CudaArena
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.kernels.cuda.visible import Arch, missing

_REASON = missing(frozenset(Arch), ())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu`, with the reason, before any fixture of it is made."""
    if _REASON is not None:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=_REASON))


@pytest.fixture(autouse=True)
def _device_memory_is_given_back() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    """A runner for the cases of a module's tests."""
    with Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def arena() -> Iterator[CudaArena]:
    """Guarded memory of the GPU, for the tests of a module."""
    with CudaArena() as arena:
        yield arena
