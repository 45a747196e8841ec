"""Stands for writers of the KV cache: functions in torch, right and wrong."""

from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace

from attnfuzz.kernels.cache_writes.writer_backend import WRITES, WriterBackend
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, PaddedSlot

CAN: Capability = replace(
    WRITES,
    padding=True,
    padded_slots=(PaddedSlot.DUMMY, PaddedSlot.NOWHERE),
    graph_modes=SPECULATIVE,
    fp8_kv=True,
    kv_scales=True,
    unequal_head_dims=True,
    pool_holes=True,
)
"""Everything that `store` can do."""


def put(cache: torch.Tensor, new: torch.Tensor, slots: torch.Tensor, scale: float) -> None:
    """Write rows `new` into `slots` of a cache in the layout NHD."""
    if cache.dtype != new.dtype:
        new = (new.float() / scale).clamp(-448, 448).to(cache.dtype)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[cache.itemsize]
    size = cache.shape[1]
    cache.view(bits)[slots // size, slots % size] = new.view(bits)


def store(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: float,
    v_scale: float,
) -> None:
    """A correct writer."""
    kept = slot_mapping >= 0
    put(k_cache, key[kept], slot_mapping[kept], k_scale)
    put(v_cache, value[kept], slot_mapping[kept], v_scale)


STORE = WriterBackend(store, capability=CAN)


def wrong(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> WriterBackend:
    """`store` with other arguments."""

    def function(**arguments: Any) -> None:
        wanted = ("key", "value", "k_cache", "v_cache", "slot_mapping", "k_scale", "v_scale")
        store(**change({name: arguments[name] for name in wanted}))

    function.__name__ = name
    return WriterBackend(function, capability=CAN)
