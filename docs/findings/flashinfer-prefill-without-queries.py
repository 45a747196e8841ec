"""FlashInfer's prefill of one request crashes the process if it has no queries. Needs FlashInfer and a GPU.

The call runs in its own process. An exception would be correct, too.
"""

import sys

from _template import finish, in_child, require_gpu, requirements, show

with requirements("flashinfer-python"):
    import flashinfer
    import torch


def call(queries: int) -> None:
    """Run one call with 4 keys."""
    query = torch.ones(queries, 1, 64, dtype=torch.bfloat16, device="cuda")
    keys = torch.ones(4, 1, 64, dtype=torch.bfloat16, device="cuda")
    flashinfer.single_prefill_with_kv_cache(query, keys, keys, backend="fa2")
    torch.cuda.synchronize()


if sys.argv[1:]:
    call(int(sys.argv[1]))
    sys.exit()
require_gpu()
for queries in (1, 0):
    seen, code = in_child(queries)
    show(f"{queries} queries: {seen}", wrong=code < 0)
finish()
