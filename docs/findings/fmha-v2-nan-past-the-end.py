"""fmha_v2 multiplies V past a request's last key, which may hold NaN. Needs FlashInfer and a Hopper GPU.

One query sees two keys of logits 0 and ln 3: weights 1/4 and 3/4. The values are 0 and 1, so attention is 3/4.
"""

import math

from _flashinfer import two_keys
from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import torch
    from flashinfer.prefill import trtllm_fmha_v2_prefill

require_gpu(hopper=True)

HEAD_DIM, PAGE = 64, 16

lengths = torch.tensor([2], dtype=torch.int32, device="cuda")

for filling in (0.0, math.nan):
    query, kv_cache = two_keys(HEAD_DIM, PAGE, filling)
    out = trtllm_fmha_v2_prefill(
        (query, kv_cache),
        "Q_PAGED_KV_HND",
        workspace_buffer=torch.zeros(1 << 20, dtype=torch.uint8, device="cuda"),
        seq_lens=lengths,
        max_q_len=1,
        max_kv_len=2,
        bmm1_scale=1 / math.sqrt(HEAD_DIM),
        bmm2_scale=1.0,
        batch_size=1,
        cum_seq_lens_q=torch.tensor([0, 1], dtype=torch.int32, device="cuda"),
        cum_seq_lens_kv=torch.tensor([0, 2], dtype=torch.int32, device="cuda"),
        block_tables=torch.zeros(1, 1, dtype=torch.int32, device="cuda"),
    )
    seen = out[0, 0, 0].item()
    show(
        f"slots behind the last key hold {filling}: expected 0.750, seen {seen:.3f}", wrong=not abs(seen - 0.75) < 0.02
    )
finish()
