"""fmha_v2 multiplies V past a request's last key, which may hold NaN. Needs FlashInfer and a Hopper GPU.

One query sees two keys of logits 0 and ln 3: weights 1/4 and 3/4. The values are 0 and 1, so attention is 3/4.
"""

import math
import sys

try:
    import torch
    from flashinfer.prefill import trtllm_fmha_v2_prefill
except ImportError as error:
    print(f"{error}: pip install flashinfer-python")
    sys.exit(2)

if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    print("needs a Hopper GPU")
    sys.exit(2)

HEAD_DIM, PAGE = 64, 16

query = torch.zeros(1, 2, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
query[..., 0] = math.sqrt(HEAD_DIM)
lengths = torch.tensor([2], dtype=torch.int32, device="cuda")

wrong = False
for filling in (0.0, math.nan):
    kv_cache = torch.full((1, 2, 1, PAGE, HEAD_DIM), filling, dtype=torch.bfloat16, device="cuda")
    kv_cache[0, :, 0, :2] = 0
    kv_cache[0, 0, 0, 1, 0] = math.log(3)
    kv_cache[0, 1, 0, 1] = 1
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
    wrong |= not abs(seen - 0.75) < 0.02
    print(f"slots behind the last key hold {filling}: expected 0.750, seen {seen:.3f}")
sys.exit(wrong)
