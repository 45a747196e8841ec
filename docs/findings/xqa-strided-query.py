"""XQA and fmha_v2 read a strided query as if it were contiguous. Needs FlashInfer and a Hopper GPU.

Queries are 0, in a tensor of 1s, as if Q were a view of a fused projection of Q, K and V. Two keys have logits of 0 for
each query, but very different ones for the numbers between the queries: the mean of their values 0 and 1 is 1/2.
"""

import math

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import torch
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache
    from flashinfer.prefill import trtllm_fmha_v2_prefill

require_gpu(hopper=True)

HEAD_DIM, PAGE, HEADS, BATCH = 64, 16, 2, 2

qkv = torch.ones(BATCH, HEADS + 2, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
qkv[:, :HEADS] = 0
strided = qkv[:, :HEADS]
kv_cache = torch.zeros(1, 2, 1, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
kv_cache[0, 0, 0, 1] = 1
kv_cache[0, 1, 0, 1] = 1
lengths = torch.full((BATCH,), 2, dtype=torch.int32, device="cuda")
tables = torch.zeros(BATCH, 1, dtype=torch.int32, device="cuda")


def decode(query: torch.Tensor) -> torch.Tensor:
    """Run XQA with one query per request."""
    return trtllm_batch_decode_with_kv_cache(
        query=query,
        kv_cache=kv_cache,
        workspace_buffer=torch.zeros(32 << 20, dtype=torch.uint8, device="cuda"),
        block_tables=tables,
        seq_lens=lengths,
        max_seq_len=2,
        bmm1_scale=1 / math.sqrt(HEAD_DIM),
        bmm2_scale=1.0,
    )


def prefill(query: torch.Tensor) -> torch.Tensor:
    """Run the same with fmha_v2."""
    return trtllm_fmha_v2_prefill(
        (query, kv_cache),
        "Q_PAGED_KV_HND",
        workspace_buffer=torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"),
        seq_lens=lengths,
        max_q_len=1,
        max_kv_len=2,
        bmm1_scale=1 / math.sqrt(HEAD_DIM),
        bmm2_scale=1.0,
        batch_size=BATCH,
        cum_seq_lens_q=torch.arange(BATCH + 1, dtype=torch.int32, device="cuda"),
        cum_seq_lens_kv=2 * torch.arange(BATCH + 1, dtype=torch.int32, device="cuda"),
        block_tables=tables,
    )


for kernel, call in (("XQA", decode), ("fmha_v2", prefill)):
    for name, query in (("contiguous", strided.contiguous()), ("strided", strided)):
        seen = [round(row, 3) for row in call(query)[:, 0, 0].tolist()]
        show(
            f"{kernel}, {name} query: expected [0.5, 0.5], seen {seen}",
            wrong=any(abs(row - 0.5) > 0.01 for row in seen),
        )
finish()
