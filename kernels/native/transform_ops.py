"""The native kernels that rotate, gather and copy, as functions with the arguments of a library's.

Rows and caches are float32, bfloat16, float16 or float8_e4m3fn, contiguous in their last axis, with arbitrary other
strides, and on the CPU. Indices are trusted as the libraries' kernels trust them (TRAPS.md).
"""

import torch

from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import is_nhd


def apply_rope(
    query: torch.Tensor,
    key: torch.Tensor,
    rope_positions: torch.Tensor,
    rotary_dim: int,
    cos_sin_cache: torch.Tensor | None = None,
    rope_theta: float = 1e4,
    *,
    is_neox: bool = True,
    first: int = 0,
    query_out: torch.Tensor | None = None,
    key_out: torch.Tensor | None = None,
    k_scale: float = 1.0,
) -> None:
    """Rotate queries and keys, as FlashInfer's apply_rope functions do: in place, or into separate tensors.

    query and key [tokens, heads, dim], whose `rotary_dim` elements from `first` on are rotated; rope_positions int64
    [tokens]; cos_sin_cache float32 [positions, rotary_dim], cosines first; without it, angles are computed from
    rope_theta in fp32. Outputs of float8_e4m3fn hold the rotated query, and key / k_scale.
    """
    for rows, out, scale in ((query, query_out, 1.0), (key, key_out, k_scale)):
        target = rows if out is None else out
        build.load().apply_rope(
            rows, target, rope_positions, cos_sin_cache, rope_theta, rotary_dim, first, is_neox, scale
        )


def gather_cache(
    src_cache: torch.Tensor,
    dst: torch.Tensor,
    block_table: torch.Tensor,
    cu_seq_lens: torch.Tensor,
    seq_starts: torch.Tensor,
    scale: float = 1.0,
    *,
    kv_layout: str = "NHD",
) -> None:
    """Copy tokens out of a cache in pages, like vLLM's gather_and_maybe_dequant_cache.

    src_cache [pages, page_size, heads, dim], or [pages, heads, page_size, dim] with kv_layout "HND"; dst [tokens,
    heads, dim], whose rows cu_seq_lens[b] to cu_seq_lens[b + 1] are the tokens of row b of block_table from
    seq_starts[b] on. Numbers of a float8_e4m3fn cache are multiplied by scale, unless dst has that dtype too.
    """
    build.load().gather_cache(src_cache, dst, block_table, seq_starts, cu_seq_lens, is_nhd(kv_layout), scale)


def copy_blocks(cache: torch.Tensor, block_mapping: torch.Tensor, *, kv_layout: str = "NHD") -> None:
    """Copy pages block_mapping[i, 0] to block_mapping[i, 1], in turn, like vLLM's function of this name."""
    build.load().copy_blocks(cache, block_mapping, is_nhd(kv_layout))


def move_kv_cache(cache: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor, *, kv_layout: str = "NHD") -> None:
    """Move token src_loc[i] to token tgt_loc[i], like SGLang's pool: all are read before the first is written."""
    build.load().move_kv_cache(cache, tgt_loc, src_loc, is_nhd(kv_layout))
