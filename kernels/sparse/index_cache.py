"""The indexer's cache in a step: its contents, and the result of writing the step's new keys."""

import torch

from attnfuzz.kernels.interface.backend import WrittenCache, WrittenTensor
from attnfuzz.kernels.sparse.inputs import NAN_BYTE, OpInputs, pool_pages
from attnfuzz.reference.sparse.indexer import Quantised, key_bounds, key_view, scale_bounds, scale_view


def new_keys(inputs: OpInputs) -> list[int]:
    """Return the places of the step's new keys among all keys."""
    return [
        inputs.keys_from[b] + position
        for b, request in enumerate(inputs.step.requests)
        for position in range(request.kv_len - request.q_len, request.kv_len)
    ]


def cache_content(inputs: OpInputs, without: torch.Tensor | None = None) -> torch.Tensor:
    """Return the cache uint8 [pages, page bytes] with the keys of the step, but for those at the slots `without`."""
    size = inputs.geometry.page_size
    content = torch.full((pool_pages(inputs.case), size * (inputs.geometry.index_dim + 4)), NAN_BYTE, dtype=torch.uint8)
    keys, scales = inputs.index_cache_keys
    slots = inputs.all_slots
    if without is not None:
        kept = ~torch.isin(slots, without)
        keys, scales, slots = keys.view(torch.uint8)[kept].view(keys.dtype), scales[kept], slots[kept]
    pages, of_page = slots // size, slots % size
    key_view(content, size)[pages, of_page, 0] = keys.view(torch.uint8)
    scale_view(content, size)[pages, of_page, 0, 0] = scales.view(torch.int32)
    return content


def held_keys(inputs: OpInputs, cache: torch.Tensor) -> Quantised:
    """Return all keys of a step as a cache holds them, and the right ones in the place of wrong ones.

    A kernel that computes another scale within its bounds rounds some numbers the other way, and scores those.
    """
    size, slots, right = inputs.geometry.page_size, inputs.all_slots, inputs.index_cache_keys
    pages, of_page = slots // size, slots % size
    scales = scale_view(cache, size)[pages, of_page, 0, 0].view(torch.float32)
    numbers = key_view(cache, size)[pages, of_page, 0].view(right.keys.dtype)
    exact = inputs.index_keys.float()
    low, high = scale_bounds(exact, powers=inputs.geometry.powers)
    within = (low <= scales) & (scales <= high)
    bounds = key_bounds(exact, torch.where(within, scales, high))
    within &= ((bounds.low.float() <= numbers.float()) & (numbers.float() <= bounds.high.float())).all(-1)
    keys = torch.where(within[:, None], numbers.view(torch.uint8), right.keys.view(torch.uint8))
    return Quantised(keys.view(right.keys.dtype), torch.where(within, scales, right.scales))


def written_keys(
    inputs: OpInputs, before: torch.Tensor, after: torch.Tensor, tokens: tuple[tuple[int, int], ...], kernel: str
) -> WrittenCache:
    """Return the cache before and after `kernel` wrote the new keys, which belong to `tokens`, with their bounds."""
    size, new = inputs.geometry.page_size, new_keys(inputs)
    keys, slots = inputs.index_keys[new].float(), inputs.all_slots[new]
    at = torch.stack((slots // size, slots % size))
    low, high = scale_bounds(keys, powers=inputs.geometry.powers)
    held = scale_view(after, size)[at[0], at[1]].view(torch.float32)[:, 0, 0]
    within = (low <= held) & (held <= high)
    numbers = key_bounds(keys, torch.where(within, held, high))
    free = torch.zeros(2, 0, dtype=torch.int64)
    written = (
        WrittenTensor(
            "scales of the indexer's cache",
            scale_view(before, size),
            scale_view(after, size),
            at,
            low[:, None, None],
            high[:, None, None],
            free,
        ),
        WrittenTensor(
            "keys of the indexer's cache",
            key_view(before, size),
            key_view(after, size),
            at,
            numbers.low[:, None],
            numbers.high[:, None],
            free,
        ),
    )
    return WrittenCache(written, tokens[: len(new)], kernel)
