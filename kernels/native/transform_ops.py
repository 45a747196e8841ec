"""The native kernel that gathers tokens of a KV cache, as a function with the arguments of vLLM's.

Rows and caches are those of `write_ops`. Indices are trusted as vLLM's kernel trusts them (TRAPS.md).
"""

import torch

from attnfuzz.kernels.native import build
from attnfuzz.kernels.native.ops import is_nhd


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
