"""A rotation before a KV cache write in torch, as a backend: put the call of your kernel into `store`."""

import torch

from attnfuzz import Capability, RopeScaling, RotaryShare, WriterBackend

CAN = Capability(
    writes=True,
    empty_kv=False,
    kv_shorter_than_q=False,
    padding=True,
    rotary=tuple(RotaryShare),
    rope_scalings=tuple(RopeScaling),
)


def store(*, query, query_out, key, value, k_cache, v_cache, slot_mapping, rope_positions, cos_sin_cache, is_neox):
    """Rotate queries, and write rotated keys to their slots."""
    cos_sin = cos_sin_cache[rope_positions].unsqueeze(1)
    query_out.copy_(rotated(query, cos_sin, is_neox))
    pages, slots = slot_mapping // k_cache.shape[1], slot_mapping % k_cache.shape[1]
    k_cache[pages, slots] = rotated(key, cos_sin, is_neox)
    v_cache[pages, slots] = value


def rotated(rows, cos_sin, is_neox):
    """Rotate the first elements of each row in fp32, and round."""
    cos, sin = cos_sin.chunk(2, dim=-1)
    dim = cos_sin.shape[-1]
    part = rows[..., :dim].float()
    x, y = part.chunk(2, dim=-1) if is_neox else (part[..., 0::2], part[..., 1::2])
    turned = x * cos - y * sin, y * cos + x * sin
    joined = torch.cat(turned, dim=-1) if is_neox else torch.stack(turned, dim=-1).flatten(-2)
    return torch.cat((joined.to(rows.dtype), rows[..., dim:]), dim=-1)


MINE = WriterBackend(store, CAN)
