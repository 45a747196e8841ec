"""Backends of attnfuzz with a kernel, or with arguments, of one's own.

attnfuzz fuzz --backend docs/examples/varied_backend.py:MY_DECODE
"""

import torch
from msgspec.structs import replace

from attnfuzz import Launching, Mode, Variation


def my_decode(*, query, kv_cache, block_tables, seq_lens, q_len_per_req, bmm1_scale, bmm2_scale, out, lse, **others):
    """trtllm_batch_decode_with_kv_cache in torch: put the call of your kernel here. Has no window and no sinks."""
    k_cache, v_cache = kv_cache if isinstance(kv_cache, tuple) else kv_cache.unbind(1)
    if others["kv_layout"] == "HND":
        k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    for b, kv_len in enumerate(seq_lens.tolist()):
        rows = slice(b * q_len_per_req, (b + 1) * q_len_per_req)
        pages = block_tables[b, : -(-kv_len // k_cache.shape[1])].tolist()
        group = query.shape[1] // k_cache.shape[2]
        empty = k_cache[:0].flatten(0, 1)
        k = torch.cat([empty, *(k_cache[page] for page in pages)])[:kv_len].double().repeat_interleave(group, 1)
        v = torch.cat([empty, *(v_cache[page] for page in pages)])[:kv_len].double().repeat_interleave(group, 1)
        logits = torch.einsum("qhd,khd->hqk", query[rows].double(), k) * bmm1_scale
        seen = torch.ones_like(logits, dtype=torch.bool).tril(kv_len - q_len_per_req)
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0)
        out[rows] = (torch.einsum("hqk,khd->qhd", weights, v) * bmm2_scale).to(out.dtype)
        lse[rows] = (logits.masked_fill(~seen, -torch.inf).logsumexp(-1).T / torch.log(torch.tensor(2.0))).float()


MY_DECODE = Variation(
    "trtllm_mha",
    kernels={"trtllm_batch_decode_with_kv_cache": my_decode},
    capability=replace(Variation("trtllm_mha").capability, windows=False, sinks=False),
)


def padded_batch(launching: Launching):
    """Give the context kernel of a draft extend the padded batch size, which its metadata do not cover."""
    if launching.step.mode is Mode.DRAFT_EXTEND_V2:
        return {"batch_size": launching.step.padded_batch}
    return {}


PADDED_BATCH = Variation("trtllm_mha", change=padded_batch)
