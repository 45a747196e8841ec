"""XQA with a 16-bit cache divides logits by bmm2_scale instead of multiplying the output. Needs FlashInfer and SM90.

Two keys, with logits 0 and ln 3: weights 1/4 and 3/4. The values are 0 and 1, so attention is 3/4 * bmm2_scale.
"""

import math

from _flashinfer import two_keys
from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import torch
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache

require_gpu(hopper=True)

HEAD_DIM, PAGE = 64, 16

query, kv_cache = two_keys(HEAD_DIM, PAGE)

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
    show(f"bmm2_scale {bmm2_scale}: expected {expected:.3f}, seen {seen:.3f}", wrong=abs(seen - expected) > 0.02)
finish()
