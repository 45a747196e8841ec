"""Decode of FlashInfer 0.7.4 in which each query has lists of tokens of its own (`sparse_top_k`), on the native kernel.

FlashInfer runs it on trtllm-gen's kernels for SM100 and SM103. Calls that its Python refuses are refused here in that
order (decode.py:4601-4635).
"""

from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.native.ops import NATIVE, is_nhd
from attnfuzz.kernels.native.sparse_ops import sparse_attention
from attnfuzz.kernels.native.unsupported import host_scale, reject_others

_LATENT_DIM = 512


def trtllm_batch_decode_of_tokens(
    query: torch.Tensor,
    kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    workspace_buffer: torch.Tensor,  # noqa: ARG001 - a parameter of FlashInfer's
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,  # noqa: ARG001 - a parameter of FlashInfer's
    bmm1_scale: float = 1.0,
    *,
    out: torch.Tensor,
    lse: torch.Tensor | None = None,
    sparse_top_k: int,
    uses_shared_paged_kv_idx: bool = True,
    kv_layout: str = "HND",
    q_len_per_req: int = 1,
    window_left: int = -1,
    sinks: torch.Tensor | None = None,
    return_lse: bool = False,
    **others: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
    """Attend to seq_lens[r] tokens for row r: keys at block_tables[r, 0], and values at block_tables[r, 1].

    query and out [rows, heads, dim]; kv_cache are pages of one token and one head, [slots, 2, 1, 1, dim] or a pair;
    block_tables int32 [rows, 2, sparse_top_k]. Raises ValueError for arguments that FlashInfer refuses.
    """
    reject_others("trtllm_batch_decode_with_kv_cache", others)
    if (q_len_per_req, window_left, sinks) != (1, -1, None):
        raise ValueError("sparse_top_k requires one query token per request, without a sliding window or sinks")
    rows, (keys, values) = len(query), kv_cache.unbind(1) if isinstance(kv_cache, torch.Tensor) else kv_cache
    if (
        uses_shared_paged_kv_idx
        or block_tables.shape[1:] != (2, sparse_top_k)
        or len(block_tables) < rows
        or len(seq_lens) < rows
    ):
        raise ValueError(
            f"sparse_top_k requires uses_shared_paged_kv_idx=False, block_tables [batch_size, 2, {sparse_top_k}] and "
            f"batch_size seq_lens, got {tuple(block_tables.shape)} and {tuple(seq_lens.shape)}"
        )
    token, head = (1, 2) if is_nhd(kv_layout) else (2, 1)
    if keys.shape[token] != 1 or keys.stride(0) != values.stride(0):
        raise ValueError("sparse_top_k needs one-token K and V pages of one stride")
    if keys.shape[head] != 1:
        raise ValueError("sparse_top_k needs one KV head (MQA)")
    if query.shape[-1] == _LATENT_DIM:
        raise ValueError("sparse_top_k with head dim 512 is MLA's: use trtllm_batch_decode_with_kv_cache_mla")
    if sparse_top_k % 4:
        raise ValueError("sparse_top_k must be a multiple of 4")
    sparse_attention(
        query,
        keys.squeeze(token),
        block_tables[:rows, 0],
        out,
        host_scale("bmm1_scale", bmm1_scale),
        values=values.squeeze(token),
        topk_length=seq_lens[:rows],
        lse=lse,
        value_indices=block_tables[:rows, 1],
    )
    return (out, lse) if return_lse else out


DECODE: Final = Op(NATIVE.decode.name, trtllm_batch_decode_of_tokens, NATIVE.decode.writes)
"""The op of FlashInfer's function, with lists."""
