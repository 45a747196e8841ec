"""A kernel with a cache layout of its own: attnfuzz fuzz --backend docs/examples/own_layout.py:MINE.

The kernel keeps keys transposed, [pages, kv_heads, dim, 4], in pages of 4 tokens, and finds pages by one flat list.
"""

import torch

from attnfuzz import Capability, FunctionBackend

PAGE = 4


def arrange(*, k_cache, v_cache, block_tables, seq_lens, **_):
    """Return the arguments that differ, as a server of this kernel would keep them. The harness guards the tensors."""
    counts = -(-seq_lens // PAGE)
    page_ids = torch.cat([torch.empty(0, dtype=torch.int32), *(block_tables[b, :n] for b, n in enumerate(counts))])
    return {
        "keys": k_cache.permute(0, 2, 3, 1).contiguous(),
        "values": v_cache.permute(0, 2, 1, 3).contiguous(),
        "page_ids": page_ids,
        "page_starts": torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0, dtype=torch.int32)]),
    }


def my_kernel(*, out, query, keys, values, page_ids, page_starts, seq_lens, cum_seq_lens_q, scale):
    """Put the call of your kernel here: it alone runs under the harness's watch."""
    group = query.shape[1] // keys.shape[1]
    for b, kv_len in enumerate(seq_lens.tolist()):
        rows, pages = slice(*cum_seq_lens_q[b : b + 2]), page_ids[slice(*page_starts[b : b + 2])]
        q = query[rows].float().transpose(0, 1)
        k = keys[pages].float().permute(1, 2, 0, 3).flatten(2)[..., :kv_len].repeat_interleave(group, 0)
        v = values[pages].float().transpose(0, 1).flatten(1, 2)[:, :kv_len].repeat_interleave(group, 0)
        seen = torch.ones(q.shape[1], kv_len, dtype=torch.bool).tril(kv_len - q.shape[1])
        weights = (q @ k * scale).masked_fill(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0)
        out[rows] = (weights @ v).transpose(0, 1)


CAN = Capability(page_sizes=(PAGE,), head_dims=(64, 128))
MINE = FunctionBackend(my_kernel, CAN, arrange=arrange)
