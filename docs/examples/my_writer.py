"""A KV cache write in torch, as a backend: put the call of your kernel into `store` (docs/guides/cache-writes.md)."""

from attnfuzz import Capability, PaddedSlot, WriterBackend

CAN = Capability(
    writes=True,
    empty_kv=False,
    kv_shorter_than_q=False,
    padding=True,
    padded_slots=(PaddedSlot.NOWHERE,),
)


def store(*, key, value, k_cache, v_cache, slot_mapping):
    """Write each token to its slot, and skip tokens with slot -1."""
    kept = slot_mapping >= 0
    slots, page_size = slot_mapping[kept], k_cache.shape[1]
    k_cache[slots // page_size, slots % page_size] = key[kept]
    v_cache[slots // page_size, slots % page_size] = value[kept]


MINE = WriterBackend(store, CAN)
