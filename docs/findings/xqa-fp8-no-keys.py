"""XQA with an fp8 cache does not write the rows of a request without keys. Needs FlashInfer and a Hopper GPU.

Two requests of one query. The first sees one key with a value of 1; the second has none.
"""

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import torch
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache

require_gpu(hopper=True)

HEAD_DIM, PAGE, HEADS = 128, 32, 8

out = torch.full((2, HEADS, HEAD_DIM), 7.0, dtype=torch.float16, device="cuda")
trtllm_batch_decode_with_kv_cache(
    query=torch.ones(2, HEADS, HEAD_DIM, dtype=torch.float16, device="cuda"),
    kv_cache=torch.ones(1, 2, 1, PAGE, HEAD_DIM, device="cuda").to(torch.float8_e4m3fn),
    workspace_buffer=torch.zeros(32 << 20, dtype=torch.uint8, device="cuda"),
    block_tables=torch.zeros(2, 1, dtype=torch.int32, device="cuda"),
    seq_lens=torch.tensor([1, 0], dtype=torch.int32, device="cuda"),
    max_seq_len=1,
    bmm1_scale=HEAD_DIM**-0.5,
    bmm2_scale=1.0,
    out=out,
)
for row, expected in enumerate((1, 0)):
    show(
        f"request {row}: expected {expected}, seen {out[row, 0, :3].tolist()}",
        wrong=not bool(((out[row] - expected).abs() < 0.1).all()),
    )
finish()
