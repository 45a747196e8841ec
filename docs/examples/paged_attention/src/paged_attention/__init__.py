"""Causal attention to a paged KV cache, in torch. It stands for the call of a CUDA kernel."""

import torch


def attend(out, query, k_cache, v_cache, block_tables, seq_lens, cum_seq_lens_q, scale):
    """Write the attention of a ragged batch to `out` [tokens, heads, dim]."""
    for request, kv_len in enumerate(seq_lens.tolist()):
        rows = slice(*cum_seq_lens_q[request : request + 2].tolist())
        pages = block_tables[request, : -(-kv_len // k_cache.shape[1])]
        group = query.shape[1] // k_cache.shape[2]
        q = query[rows].float()
        k, v = (cache[pages].flatten(0, 1)[:kv_len].float().repeat_interleave(group, 1) for cache in (k_cache, v_cache))
        logits = torch.einsum("qhd,khd->hqk", q, k) * scale
        seen = torch.ones_like(logits, dtype=torch.bool).tril(kv_len - len(q))
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, v)
