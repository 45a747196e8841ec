"""torch's indexed assignment as a writer of the KV cache, as servers have it where no kernel of theirs runs."""

import torch

from attnfuzz.kernels.cache_writes.stored import Conversion
from attnfuzz.kernels.cache_writes.writer_backend import in_shared_pools
from attnfuzz.kernels.libraries.installed import LibraryWriter
from attnfuzz.reference.cache_scales import quantised
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, KvView, Mode, PaddedSlot, QueryView
from attnfuzz.reference.geometry import KvLayout


def put(
    *,
    key: torch.Tensor,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str,
) -> None:
    """Write each token by its index.

    SGLang's pool does the same where no kernel runs (0.5.23, srt/mem_cache/memory_pool.py, MHATokenToKVPool:
    `k_cache[indices] = k`, and `k_buf[pages, :, offs, :] = cache_k` in the layout HND).
    """
    size = k_cache.shape[1 if kv_layout == "NHD" else 2]
    pages, slots = slot_mapping // size, slot_mapping % size
    for tokens, cache, scale in ((key, k_cache, k_scale), (value, v_cache, v_scale)):
        stored = _stored(tokens, cache.dtype, scale)
        pool = cache.view(torch.uint8) if stored.dtype is torch.uint8 else cache
        if kv_layout == "NHD":
            pool[pages, slots] = stored
        else:
            pool[pages, :, slots] = stored


def _stored(tokens: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """The tokens as the cache holds them. torch indexes no fp8, so these are bytes."""
    if tokens.dtype == dtype:
        return tokens
    return quantised(tokens.float(), scale).view(torch.uint8)


PUTS = Capability(
    modes=Mode.of_kernels(),
    graph_modes=SPECULATIVE,
    writes=True,
    padding=True,
    # -1 is the last slot of a tensor.
    padded_slots=(PaddedSlot.DUMMY,),
    layouts=(KvLayout.NHD, KvLayout.HND),
    fp8_kv=True,
    kv_scales=True,
    unequal_head_dims=True,
    empty_kv=False,
    kv_shorter_than_q=False,
    query_views=tuple(QueryView),
    kv_views=tuple(KvView),
    pool_holes=True,
)
"""Indexed assignment, in a pool of one layer."""

INDEX_PUT = LibraryWriter(
    function=put, label="torch:index_put", conversion=Conversion(), capability=in_shared_pools(PUTS)
)
TORCH_WRITERS = (INDEX_PUT,)
