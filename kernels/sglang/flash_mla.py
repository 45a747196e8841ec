"""FlashMLA below SGLang: its schedules, and its decoding kernel on a native op that follows them.

The kernel's files are those of FlashMLA's dense decoding for Hopper: csrc/sm90/decode/dense/splitkv_mla.cuh,
csrc/smxx/decode/get_decoding_sched_meta, and csrc/api/dense_decode.h, whose checks are repeated.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.ops import trtllm_batch_decode_with_kv_cache_mla
from attnfuzz.kernels.releases.recording import outside
from attnfuzz.kernels.releases.stand_ins import current

_BLOCK: Final = 64
"""Keys of a page, and of a block of the kernel; also the query rows of a block."""

_PROCESSORS: Final = 132
"""Those of an H200."""

_OVERHEAD: Final = 5
"""The blocks that a request costs besides its own (get_decoding_sched_meta, fixed_overhead_num_blocks)."""

_FIELDS: Final = 8
"""Numbers of a part: first request and block, last request and the block behind its last one, first split, unused."""

_LN2: Final = math.log(2)


def _blocks(lengths: torch.Tensor) -> list[int]:
    # A request without keys has a block too.
    return [max(1, -(-length // _BLOCK)) for length in lengths.tolist()]


def schedule_of(lengths: torch.Tensor, parts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide the blocks of keys of requests with `lengths`, int32 [batch], among `parts` processors.

    Returns int32 [parts, 8], and [batch + 1]: the running number of parts of each request.
    """
    blocks = _blocks(lengths)
    payload = -(-(sum(blocks) + _OVERHEAD * len(blocks)) // parts) + _OVERHEAD
    schedule, splits = torch.zeros(parts, _FIELDS, dtype=torch.int32), [0]
    request = block = split = 0
    for part in range(parts):
        first = (request, block, split)
        room = payload
        while request < len(blocks):
            left = blocks[request] - block
            if room >= left + _OVERHEAD:
                splits.append(splits[-1] + split + 1)
                room -= left + _OVERHEAD
                request, block, split = request + 1, 0, 0
            else:
                if room > _OVERHEAD:
                    block += room - _OVERHEAD
                    split += 1
                break
        last, end = (request, block) if block else (request - 1, blocks[request - 1] if request else 0)
        schedule[part, :5] = torch.tensor([first[0], first[1], last, end, first[2]])
    return schedule, torch.tensor(splits, dtype=torch.int32)


def _follows(schedule: torch.Tensor, splits: torch.Tensor, lengths: torch.Tensor) -> list[bool]:
    """Return whether the parts of a schedule have each block of a request once, and as many splits as it is due."""
    blocks, counts = _blocks(lengths), [0] * len(lengths)
    seen: list[list[int]] = [[] for _ in blocks]
    for first, begin, last, end, *_ in schedule.tolist():
        for request in range(first, min(last + 1, len(blocks))):
            stop = end if request == last else blocks[request]
            seen[request] += range(begin if request == first else 0, stop)
            counts[request] += 1
    due = splits.diff().tolist()
    return [
        found == list(range(count)) and parts == number
        for found, count, parts, number in zip(seen, blocks, counts, due, strict=True)
    ]


def decode(
    *,
    out: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    tile_scheduler_metadata: torch.Tensor,
    num_splits: torch.Tensor,
    softmax_scale: float,
    causal: bool,
) -> None:
    """Attend to latents: q [batch, rows, heads, rank + rope], k_cache [pages, 64, 1, rank + rope], out [..., rank].

    lse [batch, heads, rows] is in base e. Requests whose blocks a schedule does not have once each are not written.
    """
    if not causal and q.shape[1] > 1:
        raise NotImplementedError("the stand-in of FlashMLA is causal")
    due, base_2 = torch.empty_like(out), torch.empty(q.shape[0], q.shape[1], q.shape[2], dtype=torch.float32)
    trtllm_batch_decode_with_kv_cache_mla(
        query=q,
        kv_cache=k_cache.squeeze(2),
        workspace_buffer=q,
        qk_nope_head_dim=0,
        kv_lora_rank=out.shape[-1],
        qk_rope_head_dim=q.shape[-1] - out.shape[-1],
        block_tables=block_table,
        seq_lens=cache_seqlens,
        max_seq_len=0,
        out=due,
        bmm1_scale=softmax_scale,
        lse=base_2,
    )
    for request, follows in enumerate(_follows(tile_scheduler_metadata, num_splits, cache_seqlens)):
        if follows:
            out[request] = due[request]
            lse[request] = base_2[request].T * _LN2


DECODE: Final = Op("flash_mla_with_kvcache", decode, frozenset({"out", "lse"}))


def get_mla_metadata(
    cache_seqlens: torch.Tensor,
    num_q_tokens_per_head_k: int,
    num_heads_k: int,
    *_: Any,
    is_fp8_kvcache: bool = False,
    **__: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand in for the function that schedules a batch for all layers."""
    assert not is_fp8_kvcache, "caches are not quantised"
    parts = max(1, _PROCESSORS // num_heads_k // -(-num_q_tokens_per_head_k // _BLOCK))
    with outside():
        return schedule_of(cache_seqlens, parts)


def flash_mla_with_kvcache(
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    head_dim_v: int,
    tile_scheduler_metadata: torch.Tensor,
    num_splits: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stand in for the kernel. Raises RuntimeError for shapes that it refuses."""
    given = [name for name, value in others.items() if value is not None and value is not False]
    if given:
        raise NotImplementedError(f"the stand-in of FlashMLA takes no {given[0]}")
    batch, rows, heads, dim = q.shape
    shapes = {
        "block_table": (block_table, (batch, block_table.shape[1])),
        "cache_seqlens": (cache_seqlens, (batch,)),
        "tile_scheduler_metadata": (tile_scheduler_metadata, (tile_scheduler_metadata.shape[0], _FIELDS)),
        "num_splits": (num_splits, (batch + 1,)),
    }
    for name, (tensor, shape) in shapes.items():
        if tensor.dtype != torch.int32:
            raise RuntimeError(f"{name} must have dtype int32, not {tensor.dtype}")
        if tuple(tensor.shape) != shape:
            raise RuntimeError(f"{name} must have shape {shape}, not {tuple(tensor.shape)}")
    out = torch.empty(batch, rows, heads, head_dim_v, dtype=q.dtype)
    lse = torch.empty(batch, heads, rows, dtype=torch.float32)
    arguments = {
        "out": out,
        "lse": lse,
        "q": q,
        "k_cache": k_cache,
        "block_table": block_table,
        "cache_seqlens": cache_seqlens,
        "tile_scheduler_metadata": tile_scheduler_metadata,
        "num_splits": num_splits,
        "softmax_scale": dim**-0.5 if softmax_scale is None else softmax_scale,
        "causal": causal,
    }
    current(DECODE.name).launch(DECODE, arguments)
    return out, lse


@dataclass
class FlashMLASchedMeta:
    """A schedule, as the library's newer functions take it (flash_mla/flash_mla_interface.py)."""

    tile_scheduler_metadata: torch.Tensor | None = None
    num_splits: torch.Tensor | None = None


def _get_mla_decoding_metadata(*args: Any, use_legacy: bool, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    del use_legacy
    return get_mla_metadata(*args, **kwargs)


def _with_schedule(*, tile_scheduler_metadata: FlashMLASchedMeta, use_legacy: bool, **given: Any) -> Any:
    del use_legacy
    schedule: dict[str, Any] = vars(tile_scheduler_metadata)
    return flash_mla_with_kvcache(**given, **schedule)


LIBRARIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "sgl_kernel.flash_mla": {
        "flash_mla_with_kvcache": flash_mla_with_kvcache,
        "get_mla_metadata": get_mla_metadata,
    },
    # From 0.5.23 on, SGLang calls it by functions of its own (kernels/ops/attention/flash_mla_interface.py).
    "flash_mla": {
        "flash_mla_with_kvcache": _with_schedule,
        "get_mla_decoding_metadata": _get_mla_decoding_metadata,
        "fused_norm_rope_attn_rope_cast": None,
    },
    "flash_mla.flash_mla_interface": {"FlashMLASchedMeta": FlashMLASchedMeta},
}
"""The modules of the library that the backend imports, with their functions."""
