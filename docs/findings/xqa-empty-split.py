"""XQA outputs NaN for a request without keys if its page table is wide. Needs FlashInfer and a Hopper GPU.

One request of one query, without keys: its row is 0 for any width of its table.
"""

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import torch
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache

require_gpu(hopper=True)

HEAD_DIM, PAGE = 64, 16

for pages in (1, 16, 17, 64):
    out = trtllm_batch_decode_with_kv_cache(
        query=torch.ones(1, 2, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        kv_cache=torch.ones(1, 2, 1, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        workspace_buffer=torch.zeros(32 << 20, dtype=torch.uint8, device="cuda"),
        block_tables=torch.zeros(1, pages, dtype=torch.int32, device="cuda"),
        seq_lens=torch.tensor([0], dtype=torch.int32, device="cuda"),
        max_seq_len=1,
        bmm1_scale=0.125,
        bmm2_scale=1.0,
    )
    seen = out[0, :, 0].tolist()
    show(f"a table of {pages} pages of {PAGE} tokens: expected [0.0, 0.0], seen {seen}", wrong=seen != [0.0, 0.0])
finish()
