"""cuDNN's prefill through FlashInfer, with a request that has no keys. Needs FlashInfer, cuDNN's frontend and a GPU.

Two requests of two queries. The first sees values of 1 only, so its rows are 1; the second has no keys. The
buffers hold 7 before the call, so a row that is still 7 was not written.
"""

import math

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python nvidia-cudnn-frontend"):
    import cudnn
    import torch
    from flashinfer.cudnn import cudnn_batch_prefill_with_kv_cache

require_gpu()

HEAD_DIM, PAGE, HEADS = 128, 16, 2
print(f"cuDNN {cudnn.backend_version()}, torch {torch.__version__}")

out = torch.full((4, HEADS, HEAD_DIM), 7.0, dtype=torch.bfloat16, device="cuda")
lse = torch.full((4, HEADS), 7.0, device="cuda")
rows = torch.tensor([0, 2, 4], dtype=torch.int32, device="cuda")
cudnn_batch_prefill_with_kv_cache(
    torch.zeros(4, HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
    torch.zeros(1, HEADS, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
    torch.ones(1, HEADS, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
    HEAD_DIM**-0.5,
    torch.zeros(128 << 20, dtype=torch.uint8, device="cuda"),
    max_token_per_sequence=2,
    max_sequence_kv=PAGE,
    actual_seq_lens_q=torch.tensor([2, 2], dtype=torch.int32, device="cuda").view(-1, 1, 1, 1),
    actual_seq_lens_kv=torch.tensor([2, 0], dtype=torch.int32, device="cuda").view(-1, 1, 1, 1),
    block_tables=torch.zeros(2, 1, dtype=torch.int32, device="cuda"),
    causal=True,
    return_lse=True,
    batch_offsets_q=rows * HEADS * HEAD_DIM,
    batch_offsets_o=rows * HEADS * HEAD_DIM,
    batch_offsets_stats=rows * HEADS,
    out=out,
    lse=lse,
)
for row, (expected, expected_lse) in enumerate(((1, 0), (1, 1), (0, -math.inf), (0, -math.inf))):
    seen, seen_lse = out[row, 0, 0].item(), lse[row, 0].item()
    show(
        f"request {row // 2}, query {row % 2}: expected out {expected} and lse {expected_lse}, "
        f"seen out {seen} and lse {seen_lse}",
        wrong=not (abs(seen - expected) < 0.02 and (seen_lse == expected_lse or abs(seen_lse - expected_lse) < 0.02)),
    )
# cuDNN's bindings would list the objects that FlashInfer keeps.
finish(without_cleanup=True)
