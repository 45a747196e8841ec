"""XQA with an fp8 cache multiplies V past a request's last key. Needs FlashInfer and a Hopper GPU.

One query sees one key with a value of 1: attention is 1.
"""

import math

from _template import finish, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import torch
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache

require_gpu(hopper=True)

HEAD_DIM, PAGE, HEADS = 128, 32, 8

for in_keys, in_values in ((0.0, 0.0), (math.nan, 0.0), (0.0, math.nan)):
    kv_cache = torch.zeros(1, 2, 1, PAGE, HEAD_DIM, device="cuda")
    kv_cache[0, 0], kv_cache[0, 1] = in_keys, in_values
    kv_cache[0, :, 0, 0] = 1
    out = trtllm_batch_decode_with_kv_cache(
        query=torch.ones(1, HEADS, HEAD_DIM, dtype=torch.float16, device="cuda"),
        kv_cache=kv_cache.to(torch.float8_e4m3fn),
        workspace_buffer=torch.zeros(32 << 20, dtype=torch.uint8, device="cuda"),
        block_tables=torch.zeros(1, 1, dtype=torch.int32, device="cuda"),
        seq_lens=torch.tensor([1], dtype=torch.int32, device="cuda"),
        max_seq_len=1,
        bmm1_scale=HEAD_DIM**-0.5,
        bmm2_scale=1.0,
    )
    seen = out[0, 0, 0].item()
    show(
        f"slots behind the last key hold {in_keys} in K and {in_values} in V: expected 1.0, seen {seen:.3f}",
        wrong=not abs(seen - 1) < 0.1,
    )
finish()
