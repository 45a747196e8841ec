"""Attention to draft trees with a mistake: the mask is applied only if the step has one request."""

import torch

from attnfuzz import Capability, FunctionBackend, Mask, Mode


def attend(*, out, query, k_cache, v_cache, block_tables, seq_lens, cum_seq_lens_q, scale, mask, **_):
    """Attend to the pages of each request."""
    for b, length in enumerate(seq_lens.tolist()):
        rows = slice(*cum_seq_lens_q[b : b + 2].tolist())
        pages = block_tables[b, : -(-length // k_cache.shape[1])].long()
        key, value = (cache[pages].flatten(0, 1)[:length].float() for cache in (k_cache, v_cache))
        key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (key, value))
        queries = query[rows].float()
        seen = torch.ones(len(queries), length, dtype=torch.bool).tril(length - len(queries))
        if mask is not None and len(seq_lens) == 1:
            seen = mask[rows, :length]
        logits = torch.einsum("qhd,khd->hqk", queries, key) * scale
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, value).to(out.dtype)


TREES = FunctionBackend(
    attend,
    capability=Capability(modes=(Mode.TARGET_VERIFY,), masks=(Mask.CAUSAL, Mask.TREE)),
)
