"""SGLang's writers of the KV cache in Triton, interpreted on the CPU."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from msgspec import structs

from attnfuzz.kernels.cache_writes.stored import Conversion
from attnfuzz.kernels.cache_writes.writer_backend import in_shared_pools
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.kernels.libraries.installed import LibraryWriter
from attnfuzz.kernels.libraries.interpreted import StandIn, check_size, import_sources, import_triton, no_interpreter
from attnfuzz.kernels.planning.latent_parts import latent_parts
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import SPECULATIVE, KvView, PaddedSlot, QueryView
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

_OPS = "sglang.kernels.ops.kvcache"
_HEADS = 4
"""Heads in one program of reshape_and_cache_flash (`HEAD_BLOCK` in its launcher)."""


def _no(*_: object, **__: object) -> bool:
    return False


_AT_A_LAUNCH: Mapping[str, Mapping[str, object]] = {
    # The CUDA kernel that SGLang prefers on Hopper can't be compiled here.
    f"{_OPS}.set_mla_kv_buffer": {"can_use_set_mla_kv_buffer": _no, "set_mla_kv_buffer": None},
    "sglang.srt.platforms": {"current_platform": SimpleNamespace(capabilities=SimpleNamespace(supports_triton=True))},
}
"""The modules that a launcher imports, with their members."""


@cache
def _modules() -> dict[str, Any]:
    import_triton()
    names = ("cache_move", "cache_ops", "mla_buffer")
    modules = import_sources(
        "sglang",
        [f"{_OPS}.{name}" for name in names],
        {
            "sglang.kernels.jit.utils": {"is_arch_support_pdl": _no},
            "sglang.srt.runtime_context": {"get_parallel": None},
            "sglang.srt.utils": {"is_cpu": _no},
        },
    )
    return {name: modules[f"{_OPS}.{name}"] for name in names}


@contextmanager
def _importable() -> Iterator[None]:
    """Let a launcher import the modules of _AT_A_LAUNCH. All others that it imports stay."""
    parents = ("sglang", "sglang.srt", "sglang.kernels", "sglang.kernels.ops", _OPS)
    modules = {name: StandIn(name, _AT_A_LAUNCH.get(name, {})) for name in (*parents, *_AT_A_LAUNCH)}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            del sys.modules[name]


def _store(
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
    """Launch as MHATokenToKVPool.set_kv_buffer does for pools in the layout HND (srt/mem_cache/memory_pool.py).

    With the scales of an fp8 cache, as AiterAttnBackend does (srt/layers/attention/aiter_backend.py).
    """
    check_size(programs=len(key) * -(-key.shape[1] // _HEADS), tiles=0)
    pools = (k_cache, v_cache) if kv_layout == "NHD" else (k_cache.permute(0, 2, 1, 3), v_cache.permute(0, 2, 1, 3))
    scales = {} if key.dtype == k_cache.dtype else {"k_scale": torch.tensor(k_scale), "v_scale": torch.tensor(v_scale)}
    _modules()["cache_ops"].launch_reshape_and_cache_flash(key, value, *pools, slot_mapping, **scales)


def _store_latents(*, key: torch.Tensor, kv_cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
    """Launch as MLATokenToKVPool.set_mla_kv_buffer does (srt/mem_cache/memory_pool.py). Slot 0 is skipped."""
    check_size(programs=len(key) * -(-key.shape[2] // 128), tiles=0)
    slots = kv_cache.view(-1, 1, kv_cache.shape[-1])
    module = _modules()["mla_buffer"]
    with _importable():
        if key.dtype == kv_cache.dtype:
            module.set_mla_kv_buffer_triton(slots, slot_mapping, *latent_parts(key))
        else:
            module.set_mla_kv_buffer_triton_fp8_quant(slots, slot_mapping, *latent_parts(key), kv_cache.dtype)


def _committed(
    *, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor, cum_seq_lens_q: torch.Tensor
) -> Mapping[str, Any]:
    """Place each request's tokens in a block of the longest one's size. The rest is NaN, with slots before the pool.

    These are the arguments of MHATokenToKVPool.set_kv_buffer_prefix_valid (srt/mem_cache/memory_pool.py), which writes
    the accepted ones of a block of draft tokens.
    """
    spans = [range(*ends) for ends in pairwise(cum_seq_lens_q.tolist())]
    block = max(map(len, spans), default=0)
    check_size(programs=len(spans) * block * -(-key[:1].nbytes // _tile(key[:1].nbytes)), tiles=0)
    rows = torch.tensor(
        [row * block + at for row, span in enumerate(spans) for at in range(len(span))], dtype=torch.int64
    )
    slots = torch.full((len(spans) * block,), -1, dtype=torch.int64)
    slots[rows] = slot_mapping[: len(rows)]
    blocks = {}
    for name, tokens in (("block_key", key), ("block_value", value)):
        blocks[name] = torch.full((len(slots), *tokens.shape[1:]), torch.nan, dtype=tokens.dtype)
        blocks[name][rows] = tokens[: len(rows)]
    lengths = torch.tensor([len(span) for span in spans], dtype=torch.int32)
    return {**blocks, "loc_2d": slots.view(len(spans), block), "commit_lens": lengths}


def _commit(
    *,
    block_key: torch.Tensor,
    block_value: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    loc_2d: torch.Tensor,
    commit_lens: torch.Tensor,
    k_scale: float,
    v_scale: float,
) -> None:
    """Launch as _set_kv_buffer_prefix_valid_impl and ..._fp8 do (srt/mem_cache/memory_pool.py)."""
    if not block_key.numel():
        return
    if block_key.dtype is torch.bfloat16 and k_cache.dtype is torch.float8_e4m3fn:
        # `_saturate_to_fp8_range` compares bfloat16 numbers.
        raise Unsupported("bfloat16 tokens for an fp8 cache: Triton's interpreter compares bfloat16 by its bits")
    module, caches = _modules()["cache_move"], [cache.view(-1, *cache.shape[2:]) for cache in (k_cache, v_cache)]
    tensors, block = (block_key, block_value, *caches, loc_2d, commit_lens), loc_2d.shape[1]
    strides = [tensor.stride(0) for tensor in tensors[:4]]
    if block_key.dtype == k_cache.dtype:
        row, size = block_key[:1].nbytes, block_key.itemsize
        tile = _tile(row)
        module.set_kv_buffer_prefix_valid_tiled[(*loc_2d.shape, -(-row // tile))](
            *tensors, *(stride * size for stride in strides), block, ROW_BYTES=row, BYTES_PER_TILE=tile
        )
    else:
        row = block_key[:1].numel()
        tile = _tile(2 * row) // 2
        module.set_kv_buffer_prefix_valid_tiled_fp8[(*loc_2d.shape, -(-row // tile))](
            *(*tensors, k_scale, v_scale, *strides, block),
            ROW_ELEMS=row,
            ELEMS_PER_TILE=tile,
            FP8_MAX=torch.finfo(k_cache.dtype).max,
        )


def _tile(row: int) -> int:
    """Return how many bytes of a row are in one program."""
    return 512 if row >= 8192 else 256 if row >= 4096 else 128


_CAPABILITY = Capability(
    graph_modes=SPECULATIVE,
    layouts=(KvLayout.HND, KvLayout.NHD),
    writes=True,
    padding=True,
    max_head_dim=128,
    fp8_kv=True,
    kv_scales=(DType.FLOAT8_E4M3,),
    empty_kv=False,
    kv_shorter_than_q=False,
    pool_holes=True,
    patience=4.0,
)
_SHARED: dict[str, Any] = {
    "extra": "triton",
    "why_not": no_interpreter,
    "packages": {"triton": "3.6", "sglang": "0.5.23"},
    "alone": frozenset({"sglang"}),
}
SGLANG_WRITERS = (
    LibraryWriter(
        function=_store,
        label="triton:sglang_reshape_and_cache",
        capability=structs.replace(
            in_shared_pools(_CAPABILITY),
            layouts=(KvLayout.HND, KvLayout.NHD),
            # Tokens at negative slots are skipped, all others are written: ids outside of the pool are trusted
            # (kernels/ops/kvcache/cache_ops.py, `slot_idx < 0`).
            padded_slots=(PaddedSlot.DUMMY, PaddedSlot.NOWHERE),
            # The heads of a token follow each other; set_kv_buffer checks it.
            query_views=(QueryView.CONTIGUOUS, QueryView.FUSED_QKV),
            value_strides=True,
            kv_views=tuple(KvView),
        ),
        **_SHARED,
    ),
    LibraryWriter(
        function=_store_latents,
        label="triton:sglang_set_mla_kv_buffer",
        capability=structs.replace(
            _CAPABILITY,
            latent=True,
            # The conversion to fp8 has no scale.
            kv_scales=False,
            layouts=(KvLayout.HND, KvLayout.NHD),
            # Slot 0 is skipped by default, and -1 is not (kernels/ops/kvcache/mla_buffer.py, `reserved_skip_index`):
            # it lies before the pool. Other ids are trusted.
            padded_slots=(PaddedSlot.DUMMY, PaddedSlot.RESERVED),
            query_views=tuple(QueryView),
            kv_views=tuple(KvView),
        ),
        **_SHARED,
    ),
    LibraryWriter(
        function=_commit,
        arrange=_committed,
        # The quotient is rounded to the dtype of the tokens before it is rounded to fp8, as torch does it
        # (kernels/ops/kvcache/cache_move.py, set_kv_buffer_prefix_valid_tiled_fp8).
        conversion=Conversion(error=2.0**-10),
        label="triton:sglang_commit_drafts",
        capability=structs.replace(
            in_shared_pools(_CAPABILITY),
            graph_modes=(),
            layouts=(KvLayout.NHD,),
            # There is no slot for padded tokens: those behind a request's accepted ones are not written.
            padding=False,
            kv_views=(KvView.SEPARATE, KvView.TOKEN_MAJOR),
        ),
        **_SHARED,
    ),
)
