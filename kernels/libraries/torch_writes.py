"""torch's writers of the KV cache: indexed assignment, rotary embedding, gather, copy; as servers have them."""

from typing import Final

import torch
from msgspec import structs

from attnfuzz.kernels.cache_writes.rotation import Rotation
from attnfuzz.kernels.cache_writes.stored import Conversion
from attnfuzz.kernels.cache_writes.writer_backend import in_shared_pools
from attnfuzz.kernels.libraries.installed import LibraryCopy, LibraryGather, LibraryWriter
from attnfuzz.reference.cache_scales import quantised
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, KvView, Mode, PaddedSlot, QueryView
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.rope import RopeScaling, RotaryShare


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
    """Convert the tokens to the form in the cache. torch indexes no fp8, so these are bytes."""
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
    value_strides=True,
    kv_views=tuple(KvView),
    pool_holes=True,
)
"""Indexed assignment, in a pool of one layer."""

INDEX_PUT = LibraryWriter(
    function=put, label="torch:index_put", conversion=Conversion(), capability=in_shared_pools(PUTS)
)


def rotate(rows: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, *, is_neox: bool) -> torch.Tensor:
    """Rotate the first elements of rows [tokens, heads, dim], in fp32, and round to their dtype.

    SGLang's layers do the same where no kernel runs (0.5.23, srt/layers/rotary_embedding, RotaryEmbedding.
    forward_native), but in the dtype of the rows.
    """
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)
    dim = cos_sin_cache.shape[1]
    part = rows[..., :dim].float()
    x, y = part.chunk(2, dim=-1) if is_neox else (part[..., 0::2], part[..., 1::2])
    turned = x * cos - y * sin, y * cos + x * sin
    joined = torch.cat(turned, dim=-1) if is_neox else torch.stack(turned, dim=-1).flatten(-2)
    return torch.cat((joined.to(rows.dtype), rows[..., dim:]), dim=-1)


def rotate_and_put(
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    rope_positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    is_neox: bool,
    value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str,
) -> None:
    """Rotate queries in place, and write rotated keys by their indices."""
    query.copy_(rotate(query, rope_positions, cos_sin_cache, is_neox=is_neox))
    put(
        key=rotate(key, rope_positions, cos_sin_cache, is_neox=is_neox),
        value=value,
        k_cache=k_cache,
        v_cache=v_cache,
        slot_mapping=slot_mapping,
        k_scale=k_scale,
        v_scale=v_scale,
        kv_layout=kv_layout,
    )


def index_get(
    *,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    key_out: torch.Tensor,
    value_out: torch.Tensor,
    block_tables: torch.Tensor,
    seq_starts: torch.Tensor,
    seq_lens: torch.Tensor,
    k_scale: float,
    v_scale: float,
    kv_layout: str,
) -> None:
    """Read each request's tokens by their indices."""
    size = k_cache.shape[1 if kv_layout == "NHD" else 2]
    spans = zip(block_tables, seq_starts.tolist(), seq_lens.tolist(), strict=True)
    places = [
        (row[torch.arange(first, end) // size].long(), torch.arange(first, end) % size) for row, first, end in spans
    ]
    pages, slots = (torch.cat(each) for each in zip(*places, strict=True))
    for out, cache, scale in ((key_out, k_cache, k_scale), (value_out, v_cache, v_scale)):
        # torch indexes no fp8.
        pool = cache.view(torch.uint8) if cache.itemsize == 1 else cache
        rows = pool[pages, slots] if kv_layout == "NHD" else pool[pages, :, slots]
        out.copy_(rows if out.dtype == cache.dtype else rows.view(cache.dtype).float() * scale)


def index_move(
    *,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    source_slots: torch.Tensor,
    target_slots: torch.Tensor,
    kv_layout: str,
) -> None:
    """Move tokens among slots as SGLang's move_kv_cache_native does (srt/mem_cache/memory_pool.py)."""
    for cache in (k_cache, v_cache):
        by_token = cache if kv_layout == "NHD" else cache.transpose(1, 2)
        pool = by_token.view(torch.uint8) if cache.itemsize == 1 else by_token
        size = pool.shape[1]
        held = pool[source_slots // size, source_slots % size]
        pool[target_slots // size, target_slots % size] = held


_PLAIN: Final = structs.replace(
    PUTS, graph_modes=(), padding=False, query_views=(QueryView.CONTIGUOUS,), value_strides=False
)

ROPE_INDEX_PUT: Final = LibraryWriter(
    function=rotate_and_put,
    label="torch:rope_index_put",
    rotation=Rotation(rounds_result=True),
    writes=INDEX_PUT.writes | {"query"},
    capability=structs.replace(PUTS, rotary=tuple(RotaryShare), rope_scalings=tuple(RopeScaling)),
)
INDEX_GET: Final = LibraryGather(function=index_get, label="torch:index_get", capability=_PLAIN)
INDEX_MOVE: Final = LibraryCopy(function=index_move, label="torch:index_move", capability=_PLAIN)
TORCH_WRITERS: Final = (INDEX_PUT, ROPE_INDEX_PUT, INDEX_GET, INDEX_MOVE)
