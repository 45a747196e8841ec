"""fmha_v2 does not write the rows of a request without keys. Needs FlashInfer and a Hopper GPU.

Two requests of two queries. The first sees values of 1 only, so its rows are 1; the second has no keys.
"""

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import torch
    from flashinfer.prefill import trtllm_fmha_v2_prefill

require_gpu(hopper=True)

HEAD_DIM, PAGE = 64, 16

out = torch.full((4, 2, HEAD_DIM), 7.0, dtype=torch.bfloat16, device="cuda")
trtllm_fmha_v2_prefill(
    (
        torch.ones(4, 2, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        torch.ones(1, 2, 1, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
    ),
    "Q_PAGED_KV_HND",
    workspace_buffer=torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"),
    seq_lens=torch.tensor([2, 0], dtype=torch.int32, device="cuda"),
    max_q_len=2,
    max_kv_len=2,
    bmm1_scale=0.125,
    bmm2_scale=1.0,
    batch_size=2,
    cum_seq_lens_q=torch.tensor([0, 2, 4], dtype=torch.int32, device="cuda"),
    cum_seq_lens_kv=torch.tensor([0, 2, 2], dtype=torch.int32, device="cuda"),
    block_tables=torch.zeros(2, 1, dtype=torch.int32, device="cuda"),
    out=out,
)
for row, expected in enumerate((1, 1, 0, 0)):
    show(
        f"request {row // 2}, query {row % 2}: expected {expected}, seen {out[row, 0, :3].tolist()}",
        wrong=not bool(((out[row] - expected).abs() < 0.02).all()),
    )
finish()
