"""XQA with a 16-bit cache divides logits by bmm2_scale instead of multiplying the output. Needs FlashInfer and SM90.

Two keys, with logits 0 and ln 3: weights 1/4 and 3/4. The values are 0 and 1, so attention is 3/4 * bmm2_scale.
"""

import math
import sys

try:
    import torch
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache
except ImportError as error:
    print(f"{error}: pip install flashinfer-python")
    sys.exit(2)

if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
    print("needs a Hopper GPU")
    sys.exit(2)

HEAD_DIM, PAGE = 64, 16

query = torch.zeros(1, 2, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
query[..., 0] = math.sqrt(HEAD_DIM)
kv_cache = torch.zeros(1, 2, 1, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
kv_cache[0, 0, 0, 1, 0] = math.log(3)
kv_cache[0, 1, 0, 1] = 1

wrong = False
for bmm2_scale in (1.0, 0.5, 2.0):
    out = trtllm_batch_decode_with_kv_cache(
        query=query,
        kv_cache=kv_cache,
        workspace_buffer=torch.zeros(16 << 20, dtype=torch.uint8, device="cuda"),
        block_tables=torch.zeros(1, 1, dtype=torch.int32, device="cuda"),
        seq_lens=torch.tensor([2], dtype=torch.int32, device="cuda"),
        max_seq_len=2,
        bmm1_scale=1 / math.sqrt(HEAD_DIM),
        bmm2_scale=bmm2_scale,
    )
    expected, seen = 0.75 * bmm2_scale, out[0, 0, 0].item()
    wrong |= abs(seen - expected) > 0.02
    print(f"bmm2_scale {bmm2_scale}: expected {expected:.3f}, seen {seen:.3f}")
sys.exit(wrong)
