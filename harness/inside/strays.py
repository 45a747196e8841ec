"""One planted access outside of a tensor, made in a worker as by a kernel, and the failures that show it.

A fault ends the process; the parent explains it from the journal.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Final

import msgspec
import torch

from attnfuzz.harness.inside.places import place_of
from attnfuzz.harness.memory.placed import PlacedMemory
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.workers.journal import Journal
from attnfuzz.harness.workers.stray_request import StrayRequest
from attnfuzz.kernels.cuda import stray
from attnfuzz.kernels.interface.backend import Fill, Op
from attnfuzz.reference.case import Outputs
from attnfuzz.reference.device import Device

_BATCH, _HEADS, _DIM, _PAGES, _PAGE = 8, 8, 64, 24, 16

TENSORS: Final = {
    "kv_cache": ((_PAGES, 2, _HEADS, _PAGE, _DIM), torch.bfloat16),
    "block_tables": ((_BATCH, 3), torch.int32),
    "seq_lens": ((_BATCH,), torch.int32),
    "query": ((_BATCH, 2 * _HEADS, _DIM), torch.bfloat16),
    "out": ((_BATCH, 2 * _HEADS, _DIM), torch.bfloat16),
    "lse": ((_BATCH, 2 * _HEADS), torch.float32),
    "workspace": (((8 << 20) + 4096,), torch.uint8),
}
"""The shapes and dtypes of a small decode."""


def _on_host(tensor: torch.Tensor, distance: int, *, write: bool, **others: Any) -> None:
    """Read or write the two bytes that lie `distance` bytes after the start of `tensor`, in the host's memory."""
    del others
    number = ctypes.c_uint16.from_address(tensor.data_ptr() + distance)
    if write:
        number.value = 0x5A5A
    else:
        _ = number.value


_OPS: Final = {Device.CPU: Op("stray", _on_host, stray.STRAY.writes), Device.CUDA: stray.STRAY}


def placed(memory: PlacedMemory) -> dict[str, torch.Tensor]:
    """Allocate the tensors of a small decode in a memory."""
    return {name: memory.tensor(name, shape, dtype, fill=Fill.ZEROS) for name, (shape, dtype) in TENSORS.items()}


def make(request: StrayRequest, write: Callable[[bytes], None]) -> list[Kind]:
    """Make the access in guarded memory. Returns the kinds of the failures that it causes, unless it is a fault.

    `write` puts the launch into the journal.
    """
    place = place_of(request.device)
    memory = place.memory(request.guard, Outputs.POISONED)
    tensors = placed(memory)
    launcher = place.launcher(memory, write, None)
    launcher.begin_step(0, "decode")
    target = tensors.pop(request.tensor)
    distance = request.offset + (target.nbytes if request.from_end else 0)
    launcher.launch(_OPS[request.device], tensor=target, distance=distance, write=request.write, **tensors)
    launcher.see_through()
    return [
        *(each.kind for each in launcher.observations),
        *(Kind.CANARY_OVERWRITTEN for _ in memory.damage().result()),
    ]


def handle(request: bytes, journal: Journal) -> bytes:
    """Answer an encoded StrayRequest with an encoded list of kinds."""
    return msgspec.json.encode(make(msgspec.json.decode(request, type=StrayRequest), journal.write))
