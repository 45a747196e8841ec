"""XQA with fewer keys than draft tokens drops the mask. Needs FlashInfer and a Hopper GPU.

Four draft tokens, of which the last is aligned with the last key. With zero queries all visible keys have equal weight,
so with values of 1, 2, 3, ... a token's output is the mean of those that it sees, or 0 if it sees none.
"""

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import torch
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache

require_gpu(hopper=True)

HEAD_DIM, PAGE, DRAFT = 64, 16, 4

query = torch.zeros(DRAFT, 2, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
kv_cache = torch.zeros(1, 2, 1, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
kv_cache[0, 1, 0] = torch.arange(1, PAGE + 1, device="cuda").unsqueeze(1)
# Bit j in the row of token i: i sees j (docstring of flashinfer.xqa.xqa).
mask = torch.tensor([[[(2 << token) - 1, 0] for token in range(DRAFT)]], dtype=torch.int32).to(torch.uint16).cuda()

for keys in (5, 4, 3, 1):
    out = trtllm_batch_decode_with_kv_cache(
        query=query,
        kv_cache=kv_cache,
        workspace_buffer=torch.zeros(32 << 20, dtype=torch.uint8, device="cuda"),
        block_tables=torch.zeros(1, 1, dtype=torch.int32, device="cuda"),
        seq_lens=torch.tensor([keys], dtype=torch.int32, device="cuda"),
        max_seq_len=keys,
        bmm1_scale=HEAD_DIM**-0.5,
        bmm2_scale=1.0,
        q_len_per_req=DRAFT,
        mask=mask,
    )
    counts = [max(0, keys - DRAFT + 1 + token) for token in range(DRAFT)]
    expected = [(count + 1) / 2 if count else 0.0 for count in counts]
    seen = [round(row, 3) for row in out[:, 0, 0].tolist()]
    show(
        f"{keys} keys: expected {expected}, seen {seen}",
        wrong=any(abs(row - right) > 0.05 for row, right in zip(seen, expected, strict=True)),
    )
finish()
