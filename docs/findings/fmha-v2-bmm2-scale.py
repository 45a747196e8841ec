"""fmha_v2 with 16-bit queries ignores bmm2_scale. Needs FlashInfer and a Hopper GPU.

One query sees two keys of logits 0 and ln 3: weights 1/4 and 3/4. The values are 0 and 1, so attention is
3/4 * bmm2_scale.
"""

import math

from _flashinfer import two_keys
from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import torch
    from flashinfer.prefill import trtllm_fmha_v2_prefill

require_gpu(hopper=True)

HEAD_DIM, PAGE = 64, 16

query, kv_cache = two_keys(HEAD_DIM, PAGE)

for bmm2_scale in (1.0, 0.5, 2.0):
    out = trtllm_fmha_v2_prefill(
        (query, kv_cache),
        "Q_PAGED_KV_HND",
        workspace_buffer=torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"),
        seq_lens=torch.tensor([2], dtype=torch.int32, device="cuda"),
        max_q_len=1,
        max_kv_len=2,
        bmm1_scale=1 / math.sqrt(HEAD_DIM),
        bmm2_scale=bmm2_scale,
        batch_size=1,
        cum_seq_lens_q=torch.tensor([0, 1], dtype=torch.int32, device="cuda"),
        cum_seq_lens_kv=torch.tensor([0, 2], dtype=torch.int32, device="cuda"),
        block_tables=torch.zeros(1, 1, dtype=torch.int32, device="cuda"),
    )
    expected, seen = 0.75 * bmm2_scale, out[0, 0, 0].item()
    show(f"bmm2_scale {bmm2_scale}: expected {expected:.3f}, seen {seen:.3f}", wrong=abs(seen - expected) > 0.02)
finish()
