"""An attention kernel to fuzz: attnfuzz fuzz --backend my_backend.py:MINE."""

import torch

from attnfuzz import FunctionBackend


def attend(*, out, query, k_cache, v_cache, block_tables, seq_lens, cum_seq_lens_q, scale, **_):
    """Attend causally to a paged KV cache: put the call of your kernel here.

    query, out [tokens, q_heads, dim]; k_cache, v_cache [pages, page_size, kv_heads, dim]; the rest int32.
    """
    for b, kv_len in enumerate(seq_lens.tolist()):
        rows = slice(*cum_seq_lens_q[b : b + 2].tolist())
        pages = block_tables[b, : -(-kv_len // k_cache.shape[1])]
        group = query.shape[1] // k_cache.shape[2]
        q = query[rows].float()
        k, v = (cache[pages].flatten(0, 1)[:kv_len].float().repeat_interleave(group, 1) for cache in (k_cache, v_cache))
        logits = torch.einsum("qhd,khd->hqk", q, k) * scale
        seen = torch.ones_like(logits, dtype=torch.bool).tril(kv_len - len(q))
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, v)


MINE = FunctionBackend(attend)
