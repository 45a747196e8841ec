"""What a kernel finds in shared memory before it writes there."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from attnfuzz.harness.inside.places import place_of
from attnfuzz.kernels.cuda import guards, nvcc
from attnfuzz.kernels.interface.backend import Fill, Op
from attnfuzz.reference.case import Guard, Outputs
from attnfuzz.reference.device import Device

pytestmark = pytest.mark.gpu

_SOURCE = Path(__file__).with_name("shared_memory") / "found.cu"
_ONES = 0xFFFFFFFF
_SIZES = [16 << 10, 48 << 10, 100 << 10, 164 << 10]


def _count_ones(counts: torch.Tensor, nbytes: int) -> None:
    """Add to counts, int32 [blocks], the words of a block's shared memory that are all ones."""
    nvcc.load(_SOURCE).found(nbytes, _ONES, counts, guards.stream())


def _one_block_each() -> torch.Tensor:
    return torch.zeros(torch.cuda.get_device_properties().multi_processor_count, dtype=torch.int32, device="cuda")


@pytest.mark.parametrize("nbytes", _SIZES)
def test_a_kernel_finds_nan_in_all_of_its_shared_memory(nbytes: int) -> None:
    counts = _one_block_each()
    torch.cuda.synchronize()
    guards.fill_shared_memory()
    _count_ones(counts, nbytes)
    assert set(counts.tolist()) == {nbytes // 4}


_COUNT = Op("count", lambda *, out: _count_ones(out, _SIZES[0]), frozenset({"out"}))


@pytest.mark.parametrize("soiled", [True, False])
@pytest.mark.parametrize("replayed", [True, False])
def test_each_launch_finds_nan_only_if_shared_memory_is_soiled(*, soiled: bool, replayed: bool) -> None:
    place = place_of(Device.CUDA)
    memory = place.memory(Guard.RIGHT, Outputs.POISONED)
    launcher = place.launcher(memory, lambda _: None, None)
    launcher.begin_step(0, "decode")
    if soiled:
        launcher.soil = place.soil
    shape = _one_block_each().shape
    first, second = (memory.tensor(name, shape, torch.int32, fill=Fill.ZEROS) for name in ("first", "second"))
    with launcher.capture() if replayed else nullcontext() as graph:
        launcher.launch(_COUNT, out=first)
        launcher.launch(_COUNT, out=second)
    if graph is not None:
        graph.replay()
    launcher.see_through()
    # The first launch has cleared what it found.
    assert set(second.tolist()) == {_SIZES[0] // 4 if soiled else 0}
    memory.release()
