"""The write of new latents into the KV cache, bit for bit, or within the roundings of packed ones."""

import torch

from attnfuzz.kernels.interface.backend import WrittenCache, WrittenTensor
from attnfuzz.kernels.sglang.sparse.indexer import latents_of
from attnfuzz.kernels.sparse.index_cache import new_keys
from attnfuzz.kernels.sparse.inputs import OpInputs
from attnfuzz.reference.sparse.case import KvFormat
from attnfuzz.reference.sparse.indexer import LARGEST, key_bounds
from attnfuzz.reference.sparse.packed import RANK, ROPE

WRITER = "set_mla_kv_buffer"

_TILE = 128
_SCALES = 4 * (RANK // _TILE)
_NEAR = 2.0**-21
"""Relative error of a scale: a few roundings of float32."""


def written_latents(
    inputs: OpInputs, before: torch.Tensor, after: torch.Tensor, tokens: tuple[tuple[int, int], ...]
) -> WrittenCache:
    """Return pools uint8 [slots, 1, bytes] before and after a step wrote its new latents, with their bounds."""
    size, new = inputs.geometry.page_size, new_keys(inputs)
    slots = inputs.all_slots[new]
    at = torch.stack((slots // size, slots % size))
    latents = latents_of(inputs)[new]
    old, held = (each.unflatten(0, (-1, size)) for each in (before, after))
    make = _packed if inputs.geometry.format is KvFormat.PACKED else _plain
    return WrittenCache(tuple(make(old, held, at, latents)), tokens, WRITER)


def _plain(before: torch.Tensor, after: torch.Tensor, at: torch.Tensor, latents: torch.Tensor) -> list[WrittenTensor]:
    bits = torch.int16
    return [WrittenTensor("KV cache", before.view(bits), after.view(bits), at, latents, latents, _none())]


def _packed(before: torch.Tensor, after: torch.Tensor, at: torch.Tensor, latents: torch.Tensor) -> list[WrittenTensor]:
    """Return the scales of tiles, their numbers by the scales that are held, and the rotary part."""
    tiles = latents[:, 0, :RANK].double().unflatten(1, (-1, _TILE))
    exact = tiles.abs().amax(-1) / LARGEST
    low, high = (exact * (1 - _NEAR)).float(), (exact * (1 + _NEAR)).float()
    parts = [each.split([RANK, _SCALES, 2 * ROPE], dim=3) for each in (before, after)]
    (old_numbers, old_scales, old_rope), (numbers, scales, rope) = [
        [part.contiguous() for part in each] for each in parts
    ]
    held = scales[at[0], at[1], 0].view(torch.float32)
    right = torch.where((low <= held) & (held <= high), held, high)
    bounds = key_bounds(tiles.flatten(0, 1), right.flatten())
    ends = [end.unflatten(0, (len(latents), -1)).flatten(1)[:, None] for end in (bounds.low, bounds.high)]
    turned = latents[..., RANK:].contiguous()
    words, halves = torch.int32, torch.int16
    return [
        WrittenTensor(
            "scales of the KV cache",
            old_scales.view(words),
            scales.view(words),
            at,
            low[:, None],
            high[:, None],
            _none(),
        ),
        WrittenTensor("numbers of the KV cache", old_numbers, numbers, at, ends[0], ends[1], _none()),
        WrittenTensor(
            "rotary part of the KV cache", old_rope.view(halves), rope.view(halves), at, turned, turned, _none()
        ),
    ]


def _none() -> torch.Tensor:
    return torch.zeros(2, 0, dtype=torch.int64)
