"""XQA crashes the process for a batch without requests. Needs FlashInfer and a Hopper GPU.

The call runs in its own process. An exception would be correct, too.
"""

import sys

from _template import finish, in_child, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import torch
    from flashinfer.decode import trtllm_batch_decode_with_kv_cache

HEAD_DIM, PAGE = 64, 16


def call(requests: int) -> None:
    """Run one call with one query per request."""
    trtllm_batch_decode_with_kv_cache(
        query=torch.ones(requests, 2, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        kv_cache=torch.ones(1, 2, 1, PAGE, HEAD_DIM, dtype=torch.bfloat16, device="cuda"),
        workspace_buffer=torch.zeros(32 << 20, dtype=torch.uint8, device="cuda"),
        block_tables=torch.zeros(requests, 1, dtype=torch.int32, device="cuda"),
        seq_lens=torch.ones(requests, dtype=torch.int32, device="cuda"),
        max_seq_len=1,
        bmm1_scale=0.125,
        bmm2_scale=1.0,
    )
    torch.cuda.synchronize()


if sys.argv[1:]:
    call(int(sys.argv[1]))
    sys.exit()
require_gpu(hopper=True)
for requests in (1, 0):
    seen, code = in_child(requests)
    show(f"{requests} requests: {seen}", wrong=code < 0)
finish()
