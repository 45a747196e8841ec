"""Decode of FlashInfer 0.7.4 in which each query has lists of tokens of its own (`sparse_top_k`), on the native kernel.

FlashInfer runs it on trtllm-gen's kernels for SM100 and SM103. Calls that its Python refuses are refused here in that
order (decode.py:4601-4635).
"""

import torch

from attnfuzz.kernels.native import sparse_ops

_LATENT_DIM = 512


def attend(
    query: torch.Tensor,
    kv_cache: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    scale: float,
    top_k: int,
    *,
    nhd: bool,
    plain: bool,
    shared: bool,
) -> None:
    """Attend to seq_lens[r] tokens for row r: keys at block_tables[r, 0], and values at block_tables[r, 1].

    query and out [rows, heads, dim]; kv_cache are pages of one token and one head, [slots, 2, 1, 1, dim] or a pair;
    block_tables int32 [rows, 2, top_k]. `plain` calls have one query per request, no window and no sinks, and `shared`
    is uses_shared_paged_kv_idx. Raises ValueError for arguments that FlashInfer refuses.
    """
    if not plain:
        raise ValueError("sparse_top_k requires one query token per request, without a sliding window or sinks")
    rows, (keys, values) = len(query), kv_cache.unbind(1) if isinstance(kv_cache, torch.Tensor) else kv_cache
    if shared or block_tables.shape[1:] != (2, top_k) or len(block_tables) < rows or len(seq_lens) < rows:
        raise ValueError(
            f"sparse_top_k requires uses_shared_paged_kv_idx=False, block_tables [batch_size, 2, {top_k}] and "
            f"batch_size seq_lens, got {tuple(block_tables.shape)} and {tuple(seq_lens.shape)}"
        )
    token, head = (1, 2) if nhd else (2, 1)
    if keys.shape[token] != 1 or keys.stride(0) != values.stride(0):
        raise ValueError("sparse_top_k needs one-token K and V pages of one stride")
    if keys.shape[head] != 1:
        raise ValueError("sparse_top_k needs one KV head (MQA)")
    if query.shape[-1] == _LATENT_DIM:
        raise ValueError("sparse_top_k with head dim 512 is MLA's: use trtllm_batch_decode_with_kv_cache_mla")
    if top_k % 4:
        raise ValueError("sparse_top_k must be a multiple of 4")
    sparse_ops.sparse_attention(
        query,
        keys.squeeze(token),
        block_tables[:rows, 0],
        out,
        scale,
        values=values.squeeze(token),
        topk_length=seq_lens[:rows],
        lse=lse,
        value_indices=block_tables[:rows, 1],
    )
